"""Stores of joins: rows by key and time in memory, in Redis, or behind an HTTP API.

May import: clients.
Start: memory_store.py.
"""
