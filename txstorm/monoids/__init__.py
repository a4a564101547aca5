"""Commutative monoids as states of bolts, from a sum to a sketch: what Hailstorm keeps.

A `Monoid` says what a state is and how two of them merge; a `MonoidBolt` keeps one per key, or one per task, merges
what each transaction brings, and emits what has changed. It works in any topology.

May import: api, storage.
Start: ready_made.py, bolt.py; committer.py for what runs.
"""

from txstorm.monoids.bolt import MonoidBolt
from txstorm.monoids.ready_made import Count, Max, Mean, Min, Monoid, SetUnion, Sum, TopN
from txstorm.monoids.sketches import CountMin, FrequentItems, HyperLogLog, Quantiles, Theta

__all__ = [
    "Count",
    "CountMin",
    "FrequentItems",
    "HyperLogLog",
    "Max",
    "Mean",
    "Min",
    "Monoid",
    "MonoidBolt",
    "Quantiles",
    "SetUnion",
    "Sum",
    "Theta",
    "TopN",
]
