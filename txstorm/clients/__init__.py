"""Clients of outside systems, one room or module each. No other package imports their libraries.

May import: nothing else.
Start: files.py.
"""
