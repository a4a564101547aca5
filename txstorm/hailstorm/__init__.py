"""Hailstorm: commutative monoids as states of bolts, on the transactional core.

A `Monoid` says what a state is and how two of them merge; a `MonoidBolt` keeps one per key, or one per task, merges
what each transaction brings, and emits what has changed. It works in any topology.

May import: api, plan, state, storage, topology.
Start: monoids.py, bolt.py.
"""

from txstorm.hailstorm.bolt import MonoidBolt
from txstorm.hailstorm.monoids import Count, Max, Mean, Min, Monoid, SetUnion, Sum, TopN
from txstorm.hailstorm.sketches import CountMin, FrequentItems, HyperLogLog, Quantiles, Theta

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
