"""Delta client: the log entries, data files and locks of Delta tables, accessed through delta-rs or directly.

May import: clients.
Start: handle.py.
"""
