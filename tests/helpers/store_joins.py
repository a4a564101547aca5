"""Topologies with the article's parts: a feed into a store, the hold of left rows, and their look-up."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from txstorm import Duration, TransactionalTopologyBuilder
from txstorm.api.join_store import JoinStore, StoreRow
from txstorm.joins import DataDelaySync, MemoryStore, Side, StoreFeed, StoreJoin
from txstorm.testing import FeedSpout, TopologyTestDriver

FIELDS = ("key", "ts", "id", "part")
LEFT = Side("feed", "l", key="key", time="ts", id="id", partition="part", partitions=["l0"])
RIGHT = Side("feed", "r", key="key", time="ts", id="id", partition="part", partitions=["r0", "r1"])
BOTH = ("left:id", "right:id")


class Counting(JoinStore):
    """Store that records the requests to another one, and can be away."""

    def __init__(self, store: JoinStore | None = None) -> None:
        self.inner: Any = store or MemoryStore()
        self.puts: list[list[StoreRow]] = []
        self.gets: list[list[Any]] = []
        self.expired: list[int] = []
        self.away = 0
        """Number of calls that still fail."""

    def _call(self) -> None:
        if self.away:
            self.away -= 1
            msg = "the store is away"
            raise ConnectionError(msg)

    def put_many(self, rows: Sequence[StoreRow]) -> None:
        self._call()
        self.puts.append(list(rows))
        self.inner.put_many(rows)

    def get_many(self, keys: Collection[Any], start: int | None, end: int | None) -> Mapping[Any, Sequence[StoreRow]]:
        self._call()
        self.gets.append(list(keys))
        found: Mapping[Any, Sequence[StoreRow]] = self.inner.get_many(keys, start, end)
        return found

    def expire(self, before: int) -> None:
        self._call()
        self.expired.append(before)
        self.inner.expire(before)

    def check_rows(self, rows: Sequence[StoreRow]) -> None:
        self.inner.check_rows(rows)

    def mark(self) -> Any:
        return self.inner.mark()

    def replace_mark(self, expected: Any, mark: Any) -> bool:
        done: bool = self.inner.replace_mark(expected, mark)
        return done


def spout(*, opaque: bool = False) -> FeedSpout:
    return FeedSpout({"l": FIELDS, "r": FIELDS}, opaque=opaque)


def net(store: Any, *, opaque: bool = False, tasks: int = 1, topology: str = "whole", **options: Any) -> Any:
    """Return a topology with all three parts; `options` of the parts by name, others of the `StoreJoin`."""
    left, right = options.pop("left", LEFT), options.pop("right", RIGHT)
    before = options.pop("before", Duration(10))
    feed = {"retain": Duration(100), "batch_size": 3, **options.pop("feed", {})}
    sync = options.pop("sync", {})
    builder = TransactionalTopologyBuilder(topology, "feed", spout(opaque=opaque))
    builder.set_bolt("fill", StoreFeed(right, store, **feed), tasks).fields_grouping("feed", "r", ["key"])
    builder.set_bolt("sync", DataDelaySync(left, **sync), tasks).fields_grouping("feed", "l", ["key"]).all_grouping(
        "fill", "position"
    )
    match = StoreJoin(
        Side("sync", key=options.pop("key", "key"), time="ts"),
        options.pop("seen", store),
        before=before,
        **{"how": "left", "select": BOTH, "batch_size": 4, **options},
    )
    builder.set_bolt("match", match, tasks).fields_grouping("sync", ["key"])
    return builder.build_topology()


def feeder(store: Any, **feed: Any) -> Any:
    """Return a topology that only fills the store."""
    builder = TransactionalTopologyBuilder("feeder", "feed", FeedSpout({"r": FIELDS}))
    options = {"retain": Duration(100), "batch_size": 3, **feed}
    builder.set_bolt("fill", StoreFeed(RIGHT, store, **options)).fields_grouping("feed", "r", ["key"])
    return builder.build_topology()


def joiner(store: Any, report: Any, **options: Any) -> Any:
    """Return a topology that only looks rows up, once `report` says that they are there."""
    builder = TransactionalTopologyBuilder("joiner", "feed", FeedSpout({"l": FIELDS}))
    sync = DataDelaySync(LEFT, report=report, refresh=options.pop("refresh", Duration(0)))
    builder.set_bolt("sync", sync).fields_grouping("feed", "l", ["key"])
    match = StoreJoin(
        Side("sync", key="key", time="ts"), store, before=Duration(10), how="left", select=BOTH, batch_size=4, **options
    )
    builder.set_bolt("match", match).fields_grouping("sync", ["key"])
    return builder.build_topology()


def commit(driver: TopologyTestDriver, rows: Mapping[str, Any] | None = None, **options: Any) -> int:
    """Feed and commit a transaction, without `rows` a heartbeat; return its txid."""
    txid: int = driver.heartbeat() if rows is None else driver.feed(rows, **options)
    driver.commit(txid)
    return txid


def end(driver: TopologyTestDriver) -> int:
    txid: int = driver.end_of_input()
    driver.commit(txid)
    return txid
