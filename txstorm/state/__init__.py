"""Reads and writes of committers: handles, unpublished rows of ended txids, commit groups, all tables of a run.

It never imports the ledger or books.

May import: storage, clients.
Start: unpublished.py (the port), then keyed.py.
"""
