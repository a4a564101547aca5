"""Puppet master of a run by replicas: its topology, the carrier of tuples, conditions, commands, log, and drills.

May import: processes, the modules of dadstorm, and everything below it.
Start: replica_topology.py, network_run.py, carrier.py.
"""
