"""Rules of interval joins: positions, release, expiry and matching, as pure functions on columns; no clock, no I/O.

May import: windows.
Start: positions.py (which rows are released, and which expire), matching.py (which rows join).
"""
