"""Operator commands from outside a topology's process: status, life cycle, savepoints, rewinds, repair, ledgers.

May import: results, recovery, joins, spouts, stateful, state.external, books, storage, ledger, clients, windows,
topology.
Start: status.py.
"""
