"""A graph as stages, phases and commit jobs; explain. Pure.

May import: topology.
Start: stages.py.
"""
