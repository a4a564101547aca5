"""Executors that call one bolt without a topology: batch bolts, stateful bolts, and windowed bolts with a state.

May import: testing, and what testing may import.
Start: batch_bolt_executor.py.
"""
