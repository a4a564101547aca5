"""The graph as text, JSON, Mermaid, DOT and SVG.

May import: topology.
Start: describe.py.
"""
