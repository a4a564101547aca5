"""DADSTORM: operator networks from a configuration file, as topologies on an engine or as replica processes.

May import: operations, results, runtime and everything below it.
Start: configuration.py, network.py, topology.py, master/replica_topology.py.
"""
