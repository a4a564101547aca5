"""Commit phase (P5 to P8): committers finish in txid order; then their group is decided, published and completed.

`coordinator.machine` decides which txids form a group.

May import: runtime, engine, spouts, state, books, storage, ledger.
Start: line.py.
"""
