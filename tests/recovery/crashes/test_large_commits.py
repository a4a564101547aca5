"""Large commits as jobs: the same rows as in the driver, despite crashes, lost workers and changed input."""

import errno
import os
import random
import signal
import threading
from collections import defaultdict
from dataclasses import replace
from datetime import timedelta
from itertools import cycle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from recovery_cases import check, check_tiling, ended, eventually, killed, lose, one_published
from scenarios.endless import Total
from scenarios.words import SPOUTS
from table_ranges import table_ranges
from watched import Diary, Gathering, Shelf, ShelfSpout, Trouble

from txstorm import BasicBolt, BatchBolt, Committer, FailedException, TransactionalTopologyBuilder, faults
from txstorm.api.state import KeyedState, SinkTable
from txstorm.clients.delta.handle import DeltaHandle
from txstorm.engine.local import LocalEngine
from txstorm.engine.spark import SparkEngine
from txstorm.errors import StateError, TxstormError
from txstorm.operations.rebuild_ledger import recover
from txstorm.replay.audit import audit
from txstorm.replay.recording import Recording, Span
from txstorm.results.read import read_changes, read_sink, read_state, rows_json
from txstorm.sinks import DeltaSink
from txstorm.spouts import MemoryTransactionalSpout
from txstorm.storage.rows.ttl import moment
from txstorm.storage.tables.intent import STAGED

TTL = timedelta(milliseconds=40)
STATES = ("seen", "lately", "exact")


class Key(BasicBolt):
    """A bolt that emits numbers under a key of two columns: a string, and a number or None."""

    fields = ("name", "part", "n")

    def execute(self, tuple, collector):
        n = tuple["n"]
        collector.emit(f"käse {n % 11}", None if n % 3 == 0 else n % 3, n)


class Keep(BatchBolt, Committer):
    """A committer that stores a count and the last number per key, and deletes some keys, partly in the same txid."""

    seen = KeyedState("seen", key={"name": str, "part": int}, value={"times": int, "last": int})
    lately = KeyedState("lately", key={"name": str, "part": int}, value={"times": int}, ttl=TTL)
    exact = KeyedState("exact", key={"name": str, "part": int}, value={"ns": pa.list_(pa.int64())})
    log = SinkTable("log", {"name": str, "n": int, "before": int})

    def __init__(self, diary: Diary | None = None, trouble: Trouble | None = None) -> None:
        self.diary, self.trouble = diary, trouble

    def prepare(self, context, collector, attempt):
        self.context, self.attempt, self.numbers = context, attempt, defaultdict(list)

    def execute(self, tuple):
        self.numbers[tuple["name"], tuple["part"]].append(tuple["n"])

    def finish_batch(self):
        seen, lately, exact = (self.context.state(name) for name in STATES)
        for key, ns in self.numbers.items():
            before = seen.get(key, {"times": 0, "last": 0})
            seen.put(key, {"times": before["times"] + len(ns), "last": ns[-1]})
            if sum(ns) % 5 == 0:
                seen.remove(key)
            if sum(ns) % 7 == 0:  # there, and gone again
                exact.put(key, [0])
                exact.remove(key)
            self.context.sink("log").append(key[0], ns[0], before["times"])
        lately.update_many({key: len(ns) for key, ns in self.numbers.items()}, lambda old, n: (old or 0) + n)
        exact.update_many(self.numbers, lambda old, ns: [*(old or []), *ns][-5:])
        if self.diary is not None:
            self.diary.note("keep", self.attempt.txid, self.context.task)
        if self.trouble is not None:
            self.trouble(self.attempt.txid, self.context.task)


class Merged(Keep):
    exact = replace(Keep.exact, layout="merge")
    lately = replace(Keep.lately, layout="merge")


class Telling(Keep):
    """A committer that emits its numbers downstream, partitioned by a field that is not its key."""

    streams = {"default": ("n", "name"), "first": ("n",)}

    def prepare(self, context, collector, attempt):
        super().prepare(context, collector, attempt)
        self.collector = collector

    def finish_batch(self):
        super().finish_batch()
        for (name, _), ns in self.numbers.items():
            self.collector.emit(ns[0], stream="first")
            for n in ns:
                self.collector.emit(n, None if n % 4 == 0 else name)


class Pass(Gathering):
    """A bolt downstream of a committer that passes its tuples on, each with its position in the task's input."""

    fields = ("n", "place")

    def finish_batch(self):
        for place, n in enumerate(self.taken):
            self.collector.emit(n, f"{self.context.task}/{place}")


class SparkWritten(Keep):
    seen = replace(Keep.seen, writer="spark")


def topology(source: Any, keep: Keep | None = None, key: Key | None = None, **settings: Any) -> Any:
    builder = TransactionalTopologyBuilder("large", "numbers", source)
    builder.set_bolt("key", key or Key(), 2).shuffle_grouping("numbers")
    builder.set_committer_bolt("keep", keep or Keep(), 3).fields_grouping("key", ["name", "part"])
    builder.set_committer_bolt("total", Total()).global_grouping("key")
    if isinstance(keep, Telling):
        behind = builder.set_bolt("pass", Pass(), 2).shuffle_grouping("key").shuffle_grouping("keep")
        behind.all_grouping("keep", "first")
        builder.set_committer_bolt("heard", DeltaSink("heard", {"n": int, "place": str})).global_grouping("pass")
    wanted = {"max_spout_pending": 6, "max_pack_txids": 3, "retry_backoff": 0.01, **settings}
    return builder.build_topology().with_settings(wanted)


def tables(data_dir: Path, last: int) -> dict[str, Any]:
    """Return all rows of a data directory without time-dependent columns: equal for equal input."""
    rows = {name: read_changes(data_dir, name, 1, last).to_pylist() for name in ("seen", "total")}
    changes = {name: sorted(map(repr, some)) for name, some in rows.items()}
    # The last transactions may have had nothing to write.
    cuts = [rows_json(read_state(data_dir, name, txid, last)) for name in ("seen", "total") for txid in range(last + 1)]
    sink = sorted(map(repr, read_sink(data_dir, "log").to_pylist()))
    return {**changes, "cuts": cuts, "exact": rows_json(read_state(data_dir, "exact", last, last)), "log": sink}


def over(data_dir: Path) -> list[Any]:
    """Return the stamps of expired rows of `Merged.lately` that any version of its table still contains."""
    table = data_dir / "state/lately"
    commits = (one for one in DeltaHandle.open(table).history() if one.info["kind"] == "commit")
    ends = {one.version: moment(one.info["txids"][-1]["stamp"]) - TTL for one in commits}
    stamps = {version: DeltaHandle.open(table, version).read(["_stamp"])["_stamp"].to_pylist() for version in ends}
    return [stamp for version, end in ends.items() for stamp in stamps[version] if stamp <= end]


LARGE = {"large_commit_rows": 8}
DRIVER = {"large_commit_rows": None, "large_commit_bytes": None}
SMALL = ("--set", "large_commit_rows=8")
POINTS = ("p5.staged.after", "p6.before", "p6.after", "p7.1.written")


def sizes(seed: int) -> tuple[list[int], list[int]]:
    """Return random numbers, and the batch size of each transaction: none, a few or many of them."""
    draw = random.Random(seed)
    takes = [draw.choice([0, 1, 3, 12, 30, 60]) for _ in range(8)]
    return [draw.randrange(1, 200) for _ in range(sum(takes))], takes


def shelf(place, numbers, takes) -> Shelf:
    return Shelf(place / "shelf.json").write(
        numbers, take={**{str(txid): take for txid, take in enumerate(takes, 1)}, "else": 1}
    )


def thirties(size=60):
    return MemoryTransactionalSpout([list(range(size))], ["n"], take=30)


def check_like_driver(place, source, txids, name="data", keep=None):
    """Check that the tables in `name` are those of a run that commits in the driver, as are the rows downstream."""
    ran(source, place / "driver", keep=keep, until=txids, **DRIVER)
    assert tables(place / name, txids) == tables(place / "driver", txids)
    if isinstance(keep, Telling):
        assert read_sink(place / name, "heard").equals(read_sink(place / "driver", "heard"))


def at_once(diary, txid, task, act):
    """Return the trouble that calls `act` in the first attempt of a task at a txid."""
    return lambda *at: act() if at == (txid, task) and diary.of("keep").count([txid, task]) == 1 else None


def ran(source, data_dir, engine="local", keep=None, key=None, until=None, **settings):
    until = {} if until is None else {"until_txid": until}
    return ended(topology(source, keep, key, **settings), data_dir, engine, **until)


@pytest.mark.parametrize(("seed", "keep"), [(None, Keep), (2, Merged)])
def test_the_same_tables_as_in_the_driver(place, progress, seed, keep):
    seed = seed or random.randrange(1, 10**6)
    progress(f"seed {seed}")
    numbers, takes = sizes(seed)
    source = ShelfSpout(shelf(place, numbers, takes))
    ran(source, place / "large", keep=keep(), until=len(takes), **LARGE)
    check_like_driver(place, source, len(takes), "large", keep())
    check(place / "large", len(takes))
    alone = {one.last for one in table_ranges(place / "large")["changes/total"] if len(one.txids) == 1}
    assert {txid for txid, take in enumerate(takes, 1) if take > 3 * LARGE["large_commit_rows"]} <= alone
    if keep is Merged:
        assert over(place / "large") == over(place / "driver") == []


def test_downstream_bolts_get_the_same_rows_as_from_the_driver(place, progress):
    seed = random.randrange(1, 10**6)
    progress(f"seed {seed}")
    numbers, takes = sizes(seed)
    source = ShelfSpout(shelf(place, numbers, takes))
    ran(source, place / "large", keep=Telling(), until=len(takes), **LARGE)
    check_like_driver(place, source, len(takes), "large", Telling())
    heard = read_sink(place / "large", "heard")["_txid"].to_pylist()
    assert set(heard) == {txid for txid, take in enumerate(takes, 1) if take}
    if max(takes) >= 30:
        assert {task for by_task in staged_by(place / "large").values() for task in by_task} >= {"0", "1", "2"}
    assert not list((place / "large").rglob("*.arrow"))


def test_a_bolt_behind_it_that_fails_takes_the_large_commit_back(place):
    source, finish, note = ShelfSpout(shelf(place, list(range(80)), [40, 40])), Pass.finish_batch, place / "failed"

    def finish_batch(bolt):
        if not note.exists():
            note.touch()
            raise ConnectionError("behind it")
        finish(bolt)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Pass, "finish_batch", finish_batch)
        handle = ran(source, place / "large", keep=Telling(), until=2, on_error="retry(3)", **LARGE)
    assert handle.progress.replays >= 1
    check_like_driver(place, source, 2, "large", Telling())


def test_what_has_a_time_to_live_is_as_the_driver_makes_it_at_the_same_stamps(place):
    numbers, takes = sizes(3)
    source = ShelfSpout(shelf(place, numbers, takes))
    ran(source, place / "large", until=4, **LARGE)
    ran(source, place / "large", until=len(takes), **LARGE)
    verdicts = []
    audit(topology(source), Recording(place / "large"), Span(1, len(takes)), LocalEngine(), verdicts.append)
    assert [(one.txid, one.equal) for one in verdicts] == [(txid, True) for txid in range(1, len(takes) + 1)]


def staged_by(data_dir, name="seen"):
    """Return, for each txid, the tasks that have staged rows; ``all`` stands for the driver."""
    found: dict[int, set[str]] = {}
    for file in (data_dir / "changes" / name / STAGED).glob("*.parquet"):
        _, txid, _, _, task, _ = file.name.split("-")
        found.setdefault(int(txid), set()).add(task)
    return found


@pytest.mark.parametrize(("point", "spout"), list(zip(POINTS, cycle(SPOUTS))))
def test_killed_and_restarted(crash, data_dir, point, spout):
    crash([f"{point}:kill:4"], "--spout", spout, extra=SMALL)
    assert set().union(*staged_by(data_dir, "counts").values()) == {"0", "1"}
    assert set().union(*staged_by(data_dir, "totals").values()) == {"all"}  # not grouped by its key


@pytest.mark.parametrize("fault", [one_published(3), "p7.1.before:hang:3,p7.3.before:hang:3,p7.2.after:kill:3"])
def test_its_ledger_is_lost_while_one_table_holds_it(ends_as_undisturbed, data_dir, fault):
    killed(fault, data_dir, *SMALL)
    lose(data_dir)
    assert recover(data_dir)["rolled_forward"] is not None
    ends_as_undisturbed(data_dir, extra=SMALL)


@pytest.mark.spark
@pytest.mark.parametrize("keep", [Telling, pytest.param(SparkWritten, marks=pytest.mark.long)])
def test_on_spark(spark, place, keep):
    """Large commits on Spark, with downstream bolts, or a table that Spark publishes from files of several tasks."""
    source = ShelfSpout(shelf(place, [n * 7 for n in range(90)], [40, 2, 48]))
    ran(source, place / "large", engine=SparkEngine(spark), keep=keep(), until=3, **LARGE)
    assert {txid: len(tasks) for txid, tasks in staged_by(place / "large").items()} == {1: 3, 2: 1, 3: 3}
    check_like_driver(place, source, 3, "large", keep() if keep is Telling else None)
    check_tiling(place / "large", 3)


@pytest.mark.spark
def test_a_worker_that_dies_costs_a_replay(spark, place, diary):
    dies = at_once(diary, 2, 1, lambda: os.kill(os.getpid(), signal.SIGKILL))
    handle = ran(thirties(), place / "data", engine=SparkEngine(spark), keep=Keep(diary, dies), **LARGE)
    assert handle.progress.replays >= 1
    assert sum(row["times"] for row in handle.state("lately").changes(1, 2).to_pylist()) > 0
    check_like_driver(place, thirties(), 2)
    check(place / "data", 2)


class Nosy(Keep):
    """A committer that reads or writes a key that is not in the input of any task."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what

    def finish_batch(self):
        if self.attempt.txid == 2 and self.context.task == 0:
            state, key = self.context.state("seen"), ("gouda", None)
            if self.what == "read":
                state.get_many([*self.numbers, key])
            else:
                state.put(key, {"times": 1, "last": 1})
        super().finish_batch()


@pytest.mark.parametrize("what", ["read", "write"])
def test_a_key_that_is_not_in_the_input_fails_the_batch(data_dir, what):
    message = r"txid 2 .*keep\[0\].*key \('gouda', None\) is not in the task's input.*large_commit_rows=none"
    with pytest.raises(StateError, match=message):
        ran(thirties(), data_dir, keep=Nosy(what), **LARGE)
    assert [one.last for one in table_ranges(data_dir)["changes/seen"]] == [1]  # whatever other tasks had staged
    ran(thirties(), data_dir, keep=Nosy(what), **DRIVER)
    check(data_dir, 2)


def test_an_opaque_replay_that_loses_keys_leaves_no_trace_of_them(place, diary):
    """Rows staged by a failed large attempt are discarded when its replay is a small batch without those keys."""
    takes, others = [30, 60, 1], [*range(30), 100, 101, 102]

    def change():
        shelf(place, others, takes)
        raise FailedException("again")

    source = ShelfSpout(shelf(place, list(range(90)), takes))
    ran(source, place / "data", keep=Keep(diary, at_once(diary, 2, 2, change)), until=2, **LARGE)
    assert diary.of("keep").count([2, 0]) == 2
    shelf(place, others, takes)
    check_like_driver(place, source, 2)
    check(place / "data", 2)
    assert staged_by(place / "data")[2] == {"all"}


def test_a_task_that_does_not_come_to_an_end_is_given_up(place, diary):
    trouble = at_once(diary, 2, 1, lambda: eventually(lambda: diary.of("over")))
    settings = {**LARGE, "batch_timeout": 2, "on_error": "retry(20)"}
    try:
        handle = ran(thirties(90), place / "data", keep=Keep(diary, trouble), **settings)
    finally:
        diary.note("over")
    assert handle.progress.replays >= 1
    check_like_driver(place, thirties(90), 3)


def test_a_full_disk_in_a_task_ends_the_run_and_the_next_one_goes_on(place, monkeypatch):
    def full(name):
        if name == "p5.staged.before" and threading.current_thread().name.startswith("txstorm-local-commit-2"):
            raise OSError(errno.ENOSPC, "No space left on device", "changes/seen")

    with monkeypatch.context() as patched, pytest.raises(TxstormError, match="changes/seen: No space left on device"):
        patched.setattr(faults, "point", full)
        ran(thirties(), place / "data", **LARGE)
    ran(thirties(), place / "data", **LARGE)
    check_like_driver(place, thirties(), 2)
    check(place / "data", 2)


class Mixed(Key):
    """A bolt that emits keys of two types in one field, which no typed column can store."""

    def execute(self, tuple, collector):
        n = tuple["n"]
        collector.emit(n if n // 2 % 2 else str(n), None, n)


class Texts(Keep):
    def execute(self, tuple):
        self.numbers[str(tuple["name"]), tuple["part"]].append(tuple["n"])


def test_keys_that_are_not_in_the_input_as_in_the_state_are_committed_in_the_driver(data_dir, caplog):
    ran(thirties(30), data_dir, keep=Texts(), key=Mixed(), **LARGE)
    assert "commits in the driver, large as it is: the input of keep: field 'name' has values of" in caplog.text
    assert staged_by(data_dir) == {1: {"all"}}
    assert len(read_state(data_dir, "lately")) + len(read_state(data_dir, "seen")) > 30
