"""Operator commands: inspect or change a topology from outside its process.

Status, life cycle, savepoints, restore, rewind, repair; moving and rebuilding a ledger; the data delay of a consumer.

May import: results, recovery, joins, spouts, stateful, state.external, books, storage, ledger, clients, windows,
topology.
Start: status.py.
"""
