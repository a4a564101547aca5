"""Maps and outlets in the user's systems: rows are staged here, put at P7, and a mark decides which were put.

May import: state, storage.
Start: targets.py.
"""
