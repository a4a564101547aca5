"""Engines: run the processing phase of packs of transactions, on Spark or on local threads, with one task code."""
