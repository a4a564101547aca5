"""Taking over (P0) a topology from the coordinator before.

It checks the ledger against the tables, raises epochs, rolls decided groups and rewinds forward, and rebuilds the
content of a lost ledger. Only `roster.py` knows the code of the topology.

May import: state.external, books, storage, ledger, clients, topology.
Start: take_over.py.
"""
