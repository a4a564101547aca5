"""Commutative monoids (Hailstorm's states, from a sum to a sketch), and the bolt that keeps one per key or per task.

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
