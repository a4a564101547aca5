"""Commands ``txstorm dadstorm …``: configurations of operator networks, runs, commands from outside, drills.

May import: all that the layers of setup.cfg allow, below cli.
Start: language.py.
"""
