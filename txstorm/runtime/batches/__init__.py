"""Planning, admission and packing of transactions into jobs (P1, P2, P4).

May import: runtime, engine, spouts, books, ledger, topology.
Start: planning.py.
"""
