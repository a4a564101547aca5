"""A simulated process: the shipped run on simulated lanes, engine, committers and tables.

May import: simulation, and what simulation may import.
Start: process.py.
"""
