"""File spout: local files as replayable ranges; independent of the other spouts.

May import: nothing else.
Start: spout.py.
"""
