"""Hailstorm topologies: snapshots at a clock with their stores, the negotiator and its registry, sources and sinks.

May import: operations, results, runtime and everything below it.
Start: __init__.py.
"""
