"""Pictures of a topology: text, JSON, Mermaid, DOT and SVG.

May import: topology.
Start: describe.py.
"""
