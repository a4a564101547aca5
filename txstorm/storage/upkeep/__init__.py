"""Maintenance in parallel to commits: its schedule, compaction, small files, retention, sweeping, the read guard.

May import: storage.tables, storage.rows, clients.
Start: schedule.py.
"""
