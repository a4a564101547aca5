"""Maintenance in parallel to commits: compaction, small files, retention, sweeping, the read guard.

May import: storage.tables, storage.rows, clients.
Start: compaction.py.
"""
