"""Small versioned values with compare-and-set and a lease: the port, in memory, in SQLite.

May import: clients, topology.
Start: port.py.
"""
