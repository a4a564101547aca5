"""Files as replayable ranges. Imports nothing of other spouts.

May import: nothing else.
Start: spout.py.
"""
