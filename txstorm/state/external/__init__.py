"""Maps and outlets in the user's systems: rows are staged here and written in P7 (publish), guarded by a commit mark.

May import: state, storage, clients/files.
Start: targets.py.
"""
