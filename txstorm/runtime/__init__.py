"""A run: opening (P0), the driver loop, the handle, stop and standby.

The only room with threads that decide.

May import: operations and everything below it.
Start: driver.py.
"""
