"""The state machine of the coordinator: `step(state, event)` gives the next state and commands. Pure.

May import: nothing else.
Start: machine.py.
"""
