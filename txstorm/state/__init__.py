"""State and sink access of committers: handles, unpublished rows of ended txids, commit groups, the tables of a run.

This package never imports the ledger or the books.

May import: storage, clients.
Start: unpublished.py (the port), then keyed.py.
"""
