"""Runtime of a topology: start-up (P0, lead), driver loop, run handle, shutdown and standby.

Only the threads of this package make decisions.

May import: operations and everything below it.
Start: driver.py.
"""
