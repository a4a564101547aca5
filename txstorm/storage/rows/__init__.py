"""Rows of states and sinks: schema, canonical values, update rule, time to live, folding. Pure Arrow, no I/O.

May import: nothing else.
Start: update_rules.py.
"""
