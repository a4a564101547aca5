"""Outside systems, one room or module each. Nothing else imports their libraries.

May import: nothing else.
Start: files.py.
"""
