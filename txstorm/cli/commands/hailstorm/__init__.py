"""Commands ``txstorm hailstorm …``: runs with snapshots at clocks, the registry in ZooKeeper, and the sample.

May import: all that the layers of setup.cfg allow, below cli.
Start: snapshots.py.
"""
