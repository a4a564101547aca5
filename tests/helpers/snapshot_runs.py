"""Topologies of monoid bolts that begin with a store's snapshots: ``restored DATA_DIR STORE``, and what they count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from txstorm import Clock, MonoidBolt, TransactionalTopologyBuilder, run
from txstorm.hailstorm import open_store
from txstorm.hailstorm.saving import Saver, beginning
from txstorm.lanes import THREADS
from txstorm.monoids import Sum, TopN
from txstorm.results.read import read_state
from txstorm.results.views import read_clock
from txstorm.runtime.companion import Companion
from txstorm.runtime.snapshots import ClockSnapshot
from txstorm.spouts import MemoryTransactionalSpout

TAGS: Sequence[Sequence[str]] = (["love", "kiss", "love", "hate", "love", "joy"], ["kiss", "kiss", "joy", "fun"])


class Restoring(Companion):
    """A companion that only begins with what a store has."""

    def __init__(self, store: Any, topology: Any, *, from_beginning: bool = False) -> None:
        self._begin = lambda: beginning(store, topology, from_beginning=from_beginning)
        self.begun = 0

    def begin(self) -> Any:
        self.begun += 1
        return self._begin()


def tags(store: Any = None, partitions: Any = TAGS, tasks: int = 2, take: Any = 1, **how: Any) -> Any:
    """Build a topology that counts tags, and keeps the best two of them in each task of another bolt."""
    spout = MemoryTransactionalSpout(partitions, "tag", take=take) if isinstance(partitions, Sequence) else partitions
    builder = TransactionalTopologyBuilder("tags", "tags", spout)
    counts = MonoidBolt("counts", Sum(), "tag", to_state=lambda row: 1)
    builder.set_bolt("counts", counts, tasks).fields_grouping("tags", ["tag"])
    builder.set_bolt("best", MonoidBolt("best", TopN(2), to_state=("tag", "state")), tasks).shuffle_grouping("counts")
    made = builder.build_topology()
    return made if store is None else replace(made, companion=lambda topology: Restoring(store, topology, **how))


def save(store: Any, topology: Any, data_dir: Path, txid: int, clock: Mapping[str, int]) -> Any:
    """Save what `data_dir` has as of `txid`; return what the saver says."""
    saver = Saver(store, topology, data_dir, THREADS)
    saver.save(ClockSnapshot(1, Clock(clock), txid, "one", 0))
    saver.close(None)
    return saver.saved


def donate(place: Path, store: Any, *txids: int, **how: Any) -> None:
    """Run the topology in `place` and save its states as of each of `txids`, each just after it is committed."""
    for txid in txids:
        topology = tags(**how)
        run(topology, engine="local", data_dir=place, until_txid=txid).awaitTermination()
        clock = read_clock(place, txid)
        assert save(store, topology, place, txid, clock) == clock


def plain(partitions: Sequence[Sequence[str]] = TAGS, taken: Mapping[str, int] | None = None) -> dict[str, int]:
    """Count the tags up to a clock (None: all)."""
    found: Counter[str] = Counter()
    for number, rows in enumerate(partitions):
        found.update(rows if taken is None else rows[: taken[str(number)] + 1])
    return dict(found)


def counted(data_dir: Path, txid: int | None = None) -> dict[str, int]:
    """Return the counts as of a txid."""
    return {row["tag"]: row["state"] for row in read_state(data_dir, "counts", txid).to_pylist()}


def main(data_dir: str, store: str) -> None:
    """Run to the end of the input, from the store's snapshot if the directory is new."""
    opened = open_store(store, 1)
    run(tags(opened, tasks=3), engine="local", data_dir=Path(data_dir), until_txid=8).awaitTermination()


def donated(place: str, store: str, txid: str) -> None:
    """Run the donor to `txid`, and save its states."""
    donate(Path(place), open_store(store), int(txid))
