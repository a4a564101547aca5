"""The Delta log of the simulated worlds: names, links, renames, checkpoints, archive.

May import: simulation, clients.delta, storage.tables.
Start: tables.py.
"""
