"""The ledger: small versioned values with compare-and-set, and a lease. The port, and ledgers in memory and in SQLite.

May import: clients, topology.
Start: port.py.
"""
