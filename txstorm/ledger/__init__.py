"""The ledger: a tree of small versioned values with compare-and-set, and a lease. The port, and its implementations.

May import: clients, topology.
Start: port.py.
"""
