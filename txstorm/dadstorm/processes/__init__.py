"""Replica processes: a fleet of them for the master of a run, here or through services on other machines.

May import: dadstorm and everything below it, but no module that is slow to import, as replicas start with it.
Start: fleet.py.
"""
