"""Engines that run packs: their port, the program shipped to workers, both engines, data sent between tasks.

May import: spouts, state, storage, clients, plan, topology.
Start: port.py.
"""
