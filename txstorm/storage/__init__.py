"""Delta tables of a topology, for whoever writes or reads them.

May import: clients, topology.
Start: tables/table_log.py.
"""
