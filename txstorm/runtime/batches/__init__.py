"""Plan and admit transactions, and pack them into jobs (P1, plan; P2, emit; P4, processed).

May import: runtime, engine, spouts, books, ledger, topology.
Start: planning.py.
"""
