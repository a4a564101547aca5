"""The rules of windows, pure functions of values: forms, event time, and which windows a transaction fires.

May import: nothing else.
Start: firing.py.
"""
