"""Delta spout: the versions of a Delta table as replayable transactions.

May import: spouts.
Start: spout.py.
"""
