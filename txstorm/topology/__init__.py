"""Topologies: the builder, its checks, and the resulting frozen graph. Pure: no I/O, no external systems.

May import: nothing else.
Start: builder.py.
"""
