"""Delta spout: the versions of a Delta table as replayable transactions.

May import: clients, spouts.
Start: spout.py.
"""
