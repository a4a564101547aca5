"""Delta tables as files and log entries, through deltalake or without it.

May import: clients.
Start: handle.py.
"""
