"""Checks of a topology before it is built; they report all faults at once.

May import: topology.
Start: validate.py.
"""
