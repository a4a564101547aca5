"""Interval joins: the bolt that a user declares, and the committer that takes its place.

May import: joins, windows.
Start: interval_join.py (what a user declares), interval_committer.py (what a transaction does).
"""
