"""Clients of external systems, one package or module for each; no other package imports their libraries.

May import: nothing else.
Start: files.py.
"""
