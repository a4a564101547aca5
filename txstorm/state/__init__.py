"""What a committer reads and writes: handles, unpublished rows of ended txids, a commit group, all tables of a run.

It never imports the ledger or books.

May import: storage, clients.
Start: unpublished.py (the port), then keyed.py.
"""
