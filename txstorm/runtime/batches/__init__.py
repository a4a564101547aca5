"""Transactions up to their commit: planned and admitted (P1), packed into jobs (P2), processed (P4).

May import: runtime, engine, spouts, monitor, state, books, storage, ledger, topology, coordinator.
Start: flow.py.
"""
