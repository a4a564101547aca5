"""Base classes and declarations for user code: spouts, bolts, groupings, states and sinks. No behaviour, no I/O.

May import: nothing else.
Start: bolt.py, spout.py, state.py.
"""
