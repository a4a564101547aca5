"""The ledger in a Delta table's log, for drivers with neither ZooKeeper nor a persistent disk.

May import: ledger, clients.
Start: ledger.py.
"""
