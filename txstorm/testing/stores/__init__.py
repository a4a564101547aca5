"""Test tools for join stores: the checks of a user-defined one, and a store that counts requests.

May import: testing.checks.
Start: join_stores.py.
"""
