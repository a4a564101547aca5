"""A topology of components that store texts of keys, and data directories that an older txstorm has written for it.

`tests/golden/keys_08151c43.tar.xz` was written by this module, run with the package of commit 08151c43.
"""

import sys
import tarfile
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

from window_bolts import Emitting

from txstorm import StatefulBolt, TransactionalTopologyBuilder
from txstorm.joins import Deduplicator
from txstorm.testing import FeedSpout, ManualClock, TopologyTestDriver
from txstorm.windows import Duration

ARCHIVE = Path(__file__).parents[1] / "golden" / "keys_08151c43.tar.xz"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SPELLED = {
    "clash": [Decimal("1.5"), Decimal("1.50"), "a,b", 1, True],
    "plain": [Decimal("1.50"), Decimal("1E+2"), Decimal("-0"), "a,b", 1, True],
}
"""Directory → the keys that it holds, each of a live window."""


Content = partial(Emitting, "key ids", lambda window: (window.key, [one["id"] for one in window.get()]))


class Count(StatefulBolt):
    """Counts tuples by key."""

    fields = ("key", "count")

    def prepare(self, context: Any, collector: Any) -> None:
        self.collector = collector

    def init_state(self, state: Any) -> None:
        self.counts = state

    def execute(self, one: Any) -> None:
        count = self.counts.get(one["k"], 0) + 1
        self.counts.put(one["k"], count)
        self.collector.emit(one["k"], count)


def driver(data_dir: Path | None = None, tasks: int = 2) -> TopologyTestDriver:
    builder = TransactionalTopologyBuilder("t", "feed", FeedSpout({"s": ("k", "ts", "id")}))
    windows = Content().with_key("k").with_timestamp_field("ts").with_tumbling_window(Duration.seconds(10))
    for name, bolt in (("w", windows), ("d", Deduplicator(id="k", keep=timedelta(days=1))), ("c", Count())):
        builder.set_bolt(name, bolt, tasks).fields_grouping("feed", "s", ["k"])
    return TopologyTestDriver(builder.build_topology(), data_dir=data_dir, clock=ManualClock(EPOCH))


def fed(running: TopologyTestDriver, keys: list[Any], seconds: int) -> dict[str, list[Any]]:
    """Commit a transaction with a tuple of each key at a time; return what each component emitted."""
    txid = running.feed({"s": [(key, seconds * 1000, f"{at}@{seconds}") for at, key in enumerate(keys)]})
    running.commit(txid)
    return {
        "w": running.emitted("w", txid),
        "d": [row[2] for row in running.emitted("d", txid, stream="s")],
        "c": [row[1] for row in running.emitted("c", txid)],
    }


def unpacked(name: str, target: Path) -> Path:
    """Unpack one of the directories; return it."""
    with tarfile.open(ARCHIVE) as archive:
        members = [one for one in archive.getmembers() if one.name.split("/")[0] == name]
        archive.extractall(target, members, filter="data")
    return target / name


if __name__ == "__main__":
    for directory, spelled in SPELLED.items():
        with driver(Path(sys.argv[1], directory)) as old:
            fed(old, spelled, 1)
            fed(old, spelled, 2)
