"""Topologies: builder, checks, and the frozen graph they result in. Pure: no I/O, no outside system.

May import: nothing else.
Start: builder.py.
"""
