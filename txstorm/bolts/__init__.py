"""Ready-made bolts, based on `api` only.

May import: nothing else.
Start: basic.py.
"""

from txstorm.bolts.aggregate import BatchCount, CountBy, Distinct
from txstorm.bolts.basic import Filter, FlatMap, Identity, Map, MapBatches, SplitWords
from txstorm.bolts.count_and_sum import CountByKey, SumByKey

__all__ = [
    "BatchCount",
    "CountBy",
    "CountByKey",
    "Distinct",
    "Filter",
    "FlatMap",
    "Identity",
    "Map",
    "MapBatches",
    "SplitWords",
    "SumByKey",
]
