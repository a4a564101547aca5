"""A run of a topology: opening (P0, lead), the driver loop, the handle, stop and standby.

The only room with threads that make decisions.

May import: operations and everything below it.
Start: driver.py.
"""
