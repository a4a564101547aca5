"""Commands of stream joins: the store server, the data delay of a consumer, and the inspection of a join.

May import: all that the layers of setup.cfg allow, below cli.
Start: data_delay.py.
"""
