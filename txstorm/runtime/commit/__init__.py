"""Commit phase (P5 to P8): committers finish in txid order; then the group is decided, published and completed.

Which txids make a group is decided by `coordinator.machine`.

May import: runtime, engine, monitor, spouts, state, books, storage, ledger.
Start: finisher.py.
"""
