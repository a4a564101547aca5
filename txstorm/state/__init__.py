"""State and sink access of committers: handles, unpublished rows of ended txids, commit groups, the tables of a run.

May import: storage, clients.
Start: unpublished.py (the port), then keyed.py.
"""
