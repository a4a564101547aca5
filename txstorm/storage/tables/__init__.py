"""One table and its log: identity, intent, staged files, compare-and-set commits, layouts, history.

May import: storage.rows, clients, topology.
Start: table_log.py.
"""
