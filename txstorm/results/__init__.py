"""Reading states, sinks, changes and history as of a txid, without Java or a lease, beside a live run.

May import: books, storage, ledger, clients.
Start: views.py.
"""
