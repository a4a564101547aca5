"""File spout: local files as replayable ranges.

May import: spouts.
Start: spout.py.
"""
