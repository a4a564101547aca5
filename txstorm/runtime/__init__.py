"""Runtime of a topology: start-up (P0, lead), driver loop, run handle, shutdown and standby.

May import: operations and everything below it.
Start: driver.py.
"""
