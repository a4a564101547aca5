"""Topologies over endless sources, which run until they are stopped or killed.

- ``life DATA_DIR DIARY [SECONDS]`` counts numbers on threads, and prints who killed it;
- ``endless DATA_DIR DIARY ENGINE [HANGING_TXID]`` is a driver script that does not handle its end;
- ``lag DATA_DIR [SETTING=VALUE…]`` counts the even and the odd numbers.
"""

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltalake
from watched import Diary, Endless, Gathering, watched_topology

from txstorm import Committer, KeyedState, TransactionalTopologyBuilder, run
from txstorm.bolts import Map


class Pass(Gathering):
    """A batch bolt that forwards numbers after a delay, and records ``["pass", txid, task, parallelism]``."""

    fields = ("n",)

    def __init__(self, diary: Diary, seconds: float) -> None:
        self.diary, self.seconds = diary, seconds

    def finish_batch(self):
        for number in self.taken:
            self.collector.emit(number)
        time.sleep(self.seconds)
        self.diary.note("pass", self.attempt.txid, self.context.task, self.context.parallelism)


class Count(Gathering, Committer):
    """A committer that counts numbers by their last digit, after calling its trouble."""

    seen = KeyedState("seen", key={"n": int}, value={"times": int})

    def __init__(self, trouble: Callable[[int], object] | None = None) -> None:
        self.trouble = trouble

    def finish_batch(self):
        if self.trouble is not None:
            self.trouble(self.attempt.txid)
        for number in self.taken:
            self.context.state("seen").update(number % 10, lambda old: (old or 0) + 1)


class Total(Gathering, Committer):
    """A committer that stores the sum of all numbers: a single row, so it has no key."""

    total = KeyedState("total", key={}, value={"n": int})

    def finish_batch(self):
        self.context.state("total").update((), lambda old: (old or 0) + sum(self.taken))


def life(
    diary: Diary, seconds: float = 0.0, tasks: int = 1, trouble: Callable[[int], object] | None = None, **settings: Any
) -> Any:
    """Build the topology numbers → pass → count (by number) and total; `tasks` is the parallelism of pass."""
    builder = TransactionalTopologyBuilder("life", "numbers", Endless(4), 2)
    builder.set_bolt("pass", Pass(diary, seconds), tasks).shuffle_grouping("numbers")
    builder.set_bolt("last", Map(lambda row: row["n"] % 10, "n"), 1).fields_grouping("pass", ["n"])
    builder.set_committer_bolt("count", Count(trouble), 1).fields_grouping("last", ["n"])
    builder.set_committer_bolt("total", Total(), 1).shuffle_grouping("pass")
    return builder.build_topology().with_settings({"max_spout_pending": 4, "max_pack_txids": 2, **settings})


def expected(txids: int) -> tuple[dict[int, int], int]:
    """Return the expected content of `seen` and `total` after `txids` transactions."""
    numbers = range(1, 4 * txids + 1)
    last = [number % 10 for number in numbers]
    return {digit: last.count(digit) for digit in sorted(set(last))}, sum(numbers)


def live(data_dir: str, diary: str, seconds: str = "0.01") -> None:
    handle = run(life(Diary(Path(diary)), float(seconds)), engine="local", data_dir=data_dir)
    handle.awaitTermination()
    print(f"committed {handle.committed}, killed by {handle.killed}")


class Pace:
    """Injected trouble: delays every commit, and makes one batch hang forever."""

    def __init__(self, hanging: int) -> None:
        self.hanging = hanging

    def __call__(self, txid, nth):
        time.sleep(3600 if txid == self.hanging else 0.01)


def endless(data_dir: str, diary: str, engine: str, hanging: str = "0") -> None:
    topology = watched_topology(Endless(), Diary(Path(diary)), process=Pace(int(hanging)), max_pack_txids=2)
    run(topology, engine=engine, data_dir=data_dir).awaitTermination()


class Kinds(Gathering, Committer):
    """A committer with two keys, each of which is incremented by one in every transaction."""

    state = KeyedState("counts", key={"kind": int}, value={"n": int})

    def finish_batch(self):
        counts = self.context.state("counts")
        counts.update_many(Counter(n % 2 for n in self.taken), lambda old, n: (old or 0) + n)


def kinds(**settings: Any) -> Any:
    """Build a topology that counts the even and the odd numbers of an endless source, 50 transactions per second."""
    builder = TransactionalTopologyBuilder("lag", "numbers", Endless())
    builder.set_committer_bolt("counts", Kinds()).global_grouping("numbers")
    return builder.build_topology().with_settings(
        {"max_group_txids": 2, "max_spout_pending": 8, "min_interval": 0.02, **settings}
    )


def seen(data_dir: Path) -> int:
    """Return the txid as of which the newest version of the plain table shows the state."""
    return as_of(deltalake.DeltaTable(data_dir / "state/counts").to_pyarrow_table().to_pylist())


def as_of(rows: list[dict[str, Any]]) -> int:
    """Return the txid as of which the state has these rows; 0 if it is empty."""
    if not rows:
        return 0
    assert sorted(row["kind"] for row in rows) == [0, 1]
    ((n, txid),) = {(row["n"], row["_txid"]) for row in rows}
    assert n == txid
    return int(txid)


def count_kinds(data_dir: str, *settings: str) -> None:
    topology = kinds(**dict(setting.split("=") for setting in settings))
    run(topology, engine="local", data_dir=data_dir).awaitTermination()
