"""The compiled plan of a topology: stages, phases, commit jobs, and a textual description. Pure functions only.

May import: topology.
Start: stages.py.
"""
