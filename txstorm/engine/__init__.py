"""Engines that run packs: the engine port, its two implementations, the program shipped to workers, data exchange.

May import: spouts, state, storage, clients, plan, topology.
Start: port.py.
"""
