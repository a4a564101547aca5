"""Operator commands: inspect or change a topology from outside its process.

Status, life cycle, savepoints, restore, rewind, repair; moving and rebuilding a ledger.

May import: results, recovery, state.external, books, storage, ledger, clients.
Start: status.py.
"""
