"""Ready-made bolts, based on `api` only.

May import: nothing else.
Start: basic.py; expressions.py for conditions and computed columns.
"""

from txstorm.bolts.aggregate import BatchCount, CountBy, CountByKey, Distinct, SumByKey
from txstorm.bolts.basic import Filter, FlatMap, Identity, Map, MapBatches, Select, SplitWords
from txstorm.bolts.expressions import Expression, parsed

__all__ = [
    "BatchCount",
    "CountBy",
    "CountByKey",
    "Distinct",
    "Expression",
    "Filter",
    "FlatMap",
    "Identity",
    "Map",
    "MapBatches",
    "Select",
    "SplitWords",
    "SumByKey",
    "parsed",
]
