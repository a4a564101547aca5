"""Reading states, sinks, changes and history as of a txid, without Java or a lease, beside a live run.

May import: joins, windows, spouts, books, storage, ledger, clients, tagged.
Start: views.py.
"""
