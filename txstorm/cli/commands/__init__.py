"""Commands of the command line, one module per family.

May import: cli, and what cli may import.
Start: run.py.
"""
