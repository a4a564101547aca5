"""The `check_*` suites, with the probe networks and rules behind them.

May import: testing, and what testing may import.
Start: rules.py.
"""
