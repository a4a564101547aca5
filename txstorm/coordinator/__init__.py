"""Decides: which transaction is planned, processed and committed when. Pure: no clock, no I/O, no randomness."""
