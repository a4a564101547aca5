"""Recovery (P0, take over): the new coordinator takes over a topology from the previous one.

Checks the ledger against the tables, raises epochs, rolls decided groups and rewinds forward, and reconstructs the
content of a lost ledger from the tables. Only `roster.py` needs the topology's code.

May import: state.external, books, storage, ledger, clients, topology.
Start: take_over.py.
"""
