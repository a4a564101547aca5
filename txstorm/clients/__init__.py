"""Clients of external systems, one package or module each. No other package imports their libraries.

May import: nothing else.
Start: files.py.
"""
