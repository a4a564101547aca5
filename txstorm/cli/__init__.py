"""Command line: each command parses its arguments, calls one function of a lower package, and prints the result.

May import: everything below it but state, storage, recovery and ledger.
Start: main.py.
"""
