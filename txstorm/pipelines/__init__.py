"""Pipelines without code: topologies that a TOML file describes, of ready-made sources, steps and sinks.

May import: joins, windows, bolts, sinks, spouts, clients, topology, api, typed.
Start: pipeline.py (a file and its topology), parts.py (what parts have in common).
"""

from txstorm.pipelines.pipeline import Pipeline

__all__ = ["Pipeline"]
