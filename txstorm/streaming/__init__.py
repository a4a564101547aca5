"""Structured Streaming queries that feed topologies: each of their batches is a transaction.

May import: runtime, results, books, engine, spouts, clients, topology, ledger, monitor.
Start: query.py.
"""
