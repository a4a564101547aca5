"""Faults of a topology, all found at once.

May import: topology.
Start: validate.py.
"""
