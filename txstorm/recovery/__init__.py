"""Recovery (P0, take over) of a topology from its previous coordinator.

Checks the ledger against the tables, raises epochs, rolls decided groups and rewinds forward, and reads the content
of a lost ledger from the tables. Only `roster.py` knows the code of the topology.

May import: state.external, books, storage, ledger, clients, topology.
Start: take_over.py.
"""
