"""Look-up joins: a stream with an external Delta table, at a version that is pinned for each transaction.

May import: joins, api, windows, clients.
Start: lookup_join.py.
"""
