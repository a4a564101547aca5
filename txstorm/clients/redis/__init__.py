"""Redis: the connection, the changes of states of stateful bolts, and the rows of join stores.

May import: nothing else.
Start: connection.py.
"""
