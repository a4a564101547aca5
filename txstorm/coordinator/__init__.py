"""The coordinator's state machine: the pure function `step(state, event)` returns the next state and commands.

May import: nothing else.
Start: machine.py.
"""
