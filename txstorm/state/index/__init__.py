"""Published rows by key: in a dict, in packed arrays or in RocksDB; opened from disk or from tables.

May import: storage, clients.
Start: index.py.
"""
