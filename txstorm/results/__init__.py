"""Reading states, sinks, changes and history as of a txid; no Java, no lease, beside a live run.

May import: books, storage, ledger, clients.
Start: views.py.
"""
