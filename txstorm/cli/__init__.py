"""The command line. Parses, calls one function of a lower room, prints.

May import: everything below it but state, storage, recovery and ledger.
Start: main.py.
"""
