"""Delta tables: their log entries, data files and locks, through delta-rs or without it.

May import: clients.
Start: handle.py.
"""
