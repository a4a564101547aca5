"""Runs packs: the port, the program shipped to workers, the two engines, what crosses between tasks.

May import: spouts, state, storage, clients, plan, topology.
Start: port.py.
"""
