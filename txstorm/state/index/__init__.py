"""Key index: the published rows of a state by key, held in a dict, in packed arrays or in RocksDB.

May import: storage, clients.
Start: index.py.
"""
