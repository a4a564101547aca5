"""From the builder to a frozen graph. Pure.

May import: nothing else.
Start: builder.py.
"""
