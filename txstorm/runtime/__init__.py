"""Running a topology: opening it (P0, lead), the driver loop, the handle, stopping and standby.

This is the only package whose threads make decisions.

May import: operations and everything below it.
Start: driver.py.
"""
