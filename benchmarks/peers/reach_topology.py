"""The reach of a URL as a topology written by hand, with what is ready-made."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from txstorm import BatchBolt, Committer, KeyedState, TransactionalTopologyBuilder
from txstorm.bolts import FlatMap
from txstorm.dadstorm.library import QueryFollowersFile
from txstorm.dadstorm.values import split_line, value
from txstorm.spouts import FileSpout

URL = "www.example.org"


class Unique(BatchBolt, Committer):
    """Passes followers that are new."""

    fields = ("follower",)
    state = KeyedState("seen", key={"follower": str}, value={"seen": bool})

    def prepare(self, context: Any, collector: Any, attempt: Any) -> None:
        self._state, self._collector = context.state("seen"), collector
        self._found: dict[str, None] = {}

    def execute(self, tuple: Any) -> None:
        self._found[tuple["follower"]] = None

    def finish_batch(self) -> None:
        for one in self._found:
            if self._state.get(one) is None:
                self._state.put(one, True)
                self._collector.emit(one)


class Count(BatchBolt, Committer):
    """Counts tuples."""

    fields = ("n",)
    state = KeyedState("count", key={"what": str}, value={"n": int})

    def prepare(self, context: Any, collector: Any, attempt: Any) -> None:
        self._state, self._collector, self._number = context.state("count"), collector, 0

    def execute(self, tuple: Any) -> None:
        self._number += 1

    def finish_batch(self) -> None:
        before = self._state.get("reach") or 0
        for number in range(before + 1, before + self._number + 1):
            self._collector.emit(number)
        if self._number:
            self._state.put("reach", before + self._number)


def by_hand(place: Path, rows: int) -> Any:
    """Return the topology of the tweets in `place`."""
    query: list[QueryFollowersFile] = []

    def wanted(row: Any) -> Iterator[Any]:
        fields = split_line(row["line"])
        if fields is not None and value(fields[2]) == URL:
            yield (list(fields),)

    def followers(row: Any) -> Iterator[Any]:
        if not query:
            query.append(QueryFollowersFile(place))
        return ((one,) for (one,) in query[0].getFollowers(row["fields"]))

    builder = TransactionalTopologyBuilder("by-hand", "lines", FileSpout(place / "tweets.data", max_batch_rows=rows), 2)
    builder.set_bolt("filter", FlatMap(wanted, "fields"), 2).local_or_shuffle_grouping("lines")
    builder.set_bolt("followers", FlatMap(followers, "follower"), 2).shuffle_grouping("filter")
    builder.set_bolt("unique", Unique(), 2).fields_grouping("followers", ["follower"])
    builder.set_bolt("count", Count()).global_grouping("unique")
    return builder.build_topology()
