"""Joins of streams: interval joins whose rows are state, joins over external stores, per window, and with tables.

May import: api, windows, clients, topology.
Start: side.py (what a user declares of a stream), interval/ (the join whose rows are state).
"""

from txstorm.api.join_store import JoinStore, StoreRow
from txstorm.joins.data_delay import DataDelay, DelayReport, collect
from txstorm.joins.deduplicator import Deduplicator
from txstorm.joins.delay.feed import StoreFeed
from txstorm.joins.delay.store_join import StoreJoin
from txstorm.joins.delay.sync import DataDelaySync
from txstorm.joins.interval.interval_join import IntervalJoin
from txstorm.joins.join_bolt import JoinBolt
from txstorm.joins.lookup.lookup_join import LookupJoin
from txstorm.joins.offsets import first_at_or_after
from txstorm.joins.service.configuration import JoinService
from txstorm.joins.side import Side
from txstorm.joins.stores.memory_store import MemoryStore
from txstorm.joins.stores.redis_store import RedisStore
from txstorm.joins.stores.rest_store import RestStore

__all__ = [
    "DataDelay",
    "DataDelaySync",
    "Deduplicator",
    "DelayReport",
    "IntervalJoin",
    "JoinBolt",
    "JoinService",
    "JoinStore",
    "LookupJoin",
    "MemoryStore",
    "RedisStore",
    "RestStore",
    "Side",
    "StoreFeed",
    "StoreJoin",
    "StoreRow",
    "collect",
    "first_at_or_after",
]
