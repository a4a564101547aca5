"""Commit phase (P5 to P8): committers finish in txid order; then their group is decided, published and completed.

May import: runtime, engine, monitor, spouts, state, books, storage, ledger.
Start: finisher.py.
"""
