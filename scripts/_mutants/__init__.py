"""Mutation tests: known defects of the package, each of which a simulated world or a test must find.

Start: __main__.py (the command); mutation.py puts a defect into code, trial.py looks for it, defects/ has the defects.
"""
