"""Recovery (P0, take over): check ledger against tables, raise epochs, roll forward; rebuild a lost ledger.

May import: state.external, books, storage, ledger, clients, topology.
Start: take_over.py.
"""
