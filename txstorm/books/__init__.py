"""Typed access to the ledger (identity, metadata, intents, savepoints, rewinds, requests), and the data directory.

May import: ledger, storage.tables, clients, topology.
Start: books.py.
"""
