"""Simulated worlds of whole topologies: shipped code from the start of a run to its tables, on files.

May import: simulation, and what simulation may import.
Start: kind.py.
"""
