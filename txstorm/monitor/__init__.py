"""Observation of a run: progress for listeners, totals, the live view. It makes no decisions.

May import: coordinator.
Start: progress.py.
"""
