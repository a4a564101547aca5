"""Check suites for user-defined spouts, states, ledgers and engines, with their rules and probe networks.

May import: testing, and what testing may import.
Start: rules.py.
"""
