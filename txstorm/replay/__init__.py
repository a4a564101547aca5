"""Committed transactions run again: one (debugger), a range (audit), all of them into new tables (backfill).

May import: runtime and everything below it.
Start: single.py.
"""
