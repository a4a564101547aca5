"""Committers load what they hold in memory at the start of a run, while its first transaction is processed."""

from typing import Any, ClassVar

import pytest
from runs import ended
from watched import Gathering

from txstorm import CollectionState, Committer, TransactionalTopologyBuilder
from txstorm.errors import StateError
from txstorm.results.read import read_state
from txstorm.spouts import MemoryTransactionalSpout
from txstorm.testing import TopologyTestDriver

ROWS = CollectionState("rows", {"key": int}, {"value": int}, order={"at": int})


class Hold(Gathering, Committer):
    """Appends numbers, and emits for each of its txids whether the sum of all before is remembered, and the sum."""

    state = ROWS
    fields = ("task", "held", "before")
    warm: ClassVar[Any] = None
    seen: ClassVar[list[tuple[Any, ...]]] = []

    def warm_up(self, context):
        rows = context.collection("rows")
        Hold.seen.append((context.task, context.attempt.txid, rows.recall()))
        if Hold.warm is not None:
            Hold.warm(rows)
        rows.remember(self.total(rows))

    def finish_batch(self):
        rows, task = self.context.collection("rows"), self.context.task
        held = rows.recall()
        before = self.total(rows) if held is None else held
        rows.append_many([(task, n, n) for n in self.taken])
        rows.remember(before + sum(self.taken))
        self.collector.emit(task, held is not None, before)

    @staticmethod
    def total(rows):
        return sum(rows.scan_table(None).column("value").to_pylist())


class Collect(Gathering):
    """Records what the committers emit."""

    found: ClassVar[list[tuple[Any, ...]]] = []

    def execute(self, tuple):
        Collect.found.append((self.attempt.txid, *tuple.values))


@pytest.fixture(autouse=True)
def _fresh():
    yield
    Hold.warm = None
    Hold.seen.clear()
    Collect.found.clear()


def topology(tasks=1):
    builder = TransactionalTopologyBuilder("warm", "numbers", MemoryTransactionalSpout([[1, 2, 3, 4]], ["n"], 1))
    builder.set_bolt("hold", Hold(), tasks).all_grouping("numbers")
    builder.set_bolt("collect", Collect()).global_grouping("hold")
    return builder.build_topology()


def started(data_dir, until, **options):
    ended(topology(**options), data_dir, until_txid=until)


def test_the_first_transaction_after_a_start_finds_what_was_loaded(tmp_path):
    started(tmp_path, 2)
    started(tmp_path, 2)
    assert Hold.seen == []  # nothing is committed yet, then nothing is to do
    started(tmp_path, 4)
    assert Hold.seen == [(0, 3, None)]
    assert Collect.found == [(1, 0, False, 0), (2, 0, True, 1), (3, 0, True, 3), (4, 0, True, 6)]


def test_every_task_loads_its_own(tmp_path):
    started(tmp_path, 1, tasks=3)
    started(tmp_path, 2, tasks=3)
    assert Hold.seen == [(0, 2, None), (1, 2, None), (2, 2, None)]
    assert Collect.found[3:] == [(2, 0, True, 3), (2, 1, True, 3), (2, 2, True, 3)]


def fail(rows):
    raise RuntimeError("cannot load")


@pytest.mark.parametrize("warm", [fail, lambda rows: rows.append(0, 9, 100), lambda rows: rows.evict_before(3)])
def test_a_warm_up_that_fails_or_writes_changes_nothing(warm, tmp_path):
    started(tmp_path, 3)
    Hold.warm = warm
    started(tmp_path, 4)
    assert Collect.found[3:] == [(4, 0, False, 6)]  # nothing of it is remembered
    assert sorted(read_state(tmp_path, "rows")["value"].to_pylist()) == [1, 2, 3, 4]


def test_handles_of_a_warm_up_are_closed_after_it(tmp_path):
    started(tmp_path, 2)
    kept = []
    Hold.warm = kept.append
    started(tmp_path, 3)
    with pytest.raises(StateError, match="used outside finish_batch"):
        kept[0].append(0, 9, 100)


def test_what_was_loaded_is_there_for_a_replay_of_the_first_transaction(tmp_path):
    started(tmp_path, 2)
    with TopologyTestDriver(topology(), data_dir=tmp_path) as driver:
        driver.ack(3)
        driver.fail(3)
        driver.commit(3)
    assert Collect.found[2:] == [(3, 0, True, 3), (3, 0, True, 3)]
