"""Commands of the command line, one module a family of verbs.

May import: cli, and what cli may import.
Start: run.py.
"""
