"""The ledger in ZooKeeper, under the paths that Storm uses.

May import: ledger, clients, topology.
Start: ledger.py.
"""
