"""Code that runs inside tasks, shared by both engines: stages, bolts, routing, dead letters, the commit phase.

May import: engine, and what engine may import.
Start: stage.py.
"""
