"""Replays of committed transactions: one (debugger), a range (audit), or all of them into new tables (backfill).

May import: runtime and everything below it.
Start: audit.py.
"""
