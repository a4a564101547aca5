"""The plan of a graph: stages, phases and commit jobs; and its explanation in words. Pure.

May import: topology.
Start: stages.py.
"""
