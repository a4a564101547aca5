"""Work beside commits: compaction, small files, retention, sweeping, the read guard.

May import: storage.tables, storage.rows, clients.
Start: compaction.py.
"""
