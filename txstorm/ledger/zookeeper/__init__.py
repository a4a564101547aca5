"""The ledger in ZooKeeper, at Storm's paths.

May import: ledger, clients, topology.
Start: ledger.py.
"""
