"""Delta tables of a topology: their rows, log and maintenance, for writers and readers.

May import: clients, topology.
Start: tables/table_log.py.
"""
