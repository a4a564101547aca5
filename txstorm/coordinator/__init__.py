"""The coordinator's state machine: `step(state, event)` returns the next state and commands. Pure.

May import: nothing else.
Start: machine.py.
"""
