"""A ZooKeeper session, and values in its nodes.

May import: nothing else.
Start: session.py.
"""
