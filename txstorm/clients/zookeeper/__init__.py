"""ZooKeeper client: a session with an ensemble, and atomic operations on nodes.

May import: nothing else.
Start: session.py.
"""
