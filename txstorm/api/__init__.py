"""What a user implements or declares. No behaviour, no I/O.

May import: nothing else.
Start: bolt.py, spout.py, state.py.
"""
