"""What listeners receive, totals, the live view. It observes and decides nothing.

May import: coordinator.
Start: progress.py.
"""
