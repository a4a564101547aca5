"""Stateful test of the public API: random sequences of calls, checked against a model of the tables.

Runs of any length and settings, runs that fail at a fault point, rewinds, savepoints and their restoration, and
reads as of any retained transaction. Hypothesis generates the sequence, shrinks it if it fails, and prints it as a
program together with the means to reproduce it.
"""

import itertools
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from watched import Gathering, PlannedSpout

import txstorm
from txstorm import Committer, KeyedState, SinkTable, TransactionalTopologyBuilder, faults, run
from txstorm.errors import StateError
from txstorm.faults import InjectedFault
from txstorm.operations.status import read_status

POINTS = (
    *("p0.after", "p1.after", "p2.after", "p4.before", "p4.after", "p5.before", "p5.after", "p5.staged.after"),
    *("p6.before", "p6.after", "p7.1.before", "p7.1.written", "p7.2.before", "p7.3.after", "p8.before", "p8.after"),
    *("history.written", "compact.staged", "sweep.before", "sweep.after", "merge.staged"),
)

PICK = st.integers(0, 999)
"""One of what there is: how much a failing run has committed differs, and what is drawn may not depend on it."""


class Numbers(PlannedSpout):
    """A spout of five numbers per transaction, determined by its txid and the number of rewinds before planning."""

    fields = ("k", "n")

    def __init__(self, turn: int) -> None:
        self.turn = turn

    def initialize_transaction(self, txid, prev_metadata):
        return [txid, self.turn]

    def emit(self, context, attempt, metadata, collector):
        for number in numbers_of(*metadata):
            collector.emit(number % 5, number)


def numbers_of(txid: int, turn: int) -> list[int]:
    return [(7 * txid + 3 * turn + 5 * each) % 23 for each in range(5)]


class Keep(Gathering, Committer):
    """A committer: sums per key in a state, newest numbers per key in a ``merge`` state, all numbers in a sink."""

    sums = KeyedState("sums", key={"k": int}, value={"sum": int})
    newest = KeyedState("newest", key={"k": int}, value={"n": int}, layout="merge")
    rows = SinkTable("rows", {"n": int})

    def finish_batch(self):
        for number in self.taken:
            self.context.sink("rows").append(number)
            for name in ("sums", "newest"):
                if number % 7 == 0:
                    self.context.state(name).remove(number % 5)
            if number % 7:
                self.context.state("sums").update(number % 5, lambda old, number=number: (old or 0) + number)
                self.context.state("newest").put(number % 5, number)


Tables = tuple[dict[int, int], dict[int, int], list[tuple[int, int]]]


def expected(turns: list[int]) -> Tables:
    """Return the tables after `turns`, where transaction N was planned after ``turns[N - 1]`` rewinds."""
    sums: dict[int, int] = {}
    newest: dict[int, int] = {}
    rows = []
    for txid, turn in enumerate(turns, start=1):
        for number in numbers_of(txid, turn):
            rows.append((txid, number))
            if number % 7 == 0:
                sums.pop(number % 5, None)
                newest.pop(number % 5, None)
            else:
                sums[number % 5] = sums.get(number % 5, 0) + number
                newest[number % 5] = number
    return sums, newest, sorted(rows)


def found_in(cut: Any) -> Tables:
    def by_key(name: str, value: str) -> dict[int, int]:
        return {row["k"]: row[value] for row in cut.state(name).to_arrow().to_pylist()}

    rows = [(row["_txid"], row["n"]) for row in cut.sink("rows").to_arrow().to_pylist()]
    return by_key("sums", "sum"), by_key("newest", "n"), sorted(rows)


class TopologyMachine(RuleBasedStateMachine):
    """Model: `turns`, committed transactions; `turn`, number of rewinds; `savepoints`, name → turns up to it.

    `decided` is the last txid that a failed run can have decided without publishing it.
    """

    def __init__(self) -> None:
        super().__init__()
        memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
        self.place = Path(tempfile.mkdtemp(prefix="txstorm-machine-", dir=memory))
        self.data = self.place / "data"
        self.turns: list[int] = []
        self.turn = 0
        self.decided = 0
        self.savepoints: dict[str, list[int]] = {}
        self.names = (f"point{number}" for number in itertools.count())

    @initialize()
    def first(self) -> None:
        self._run(2, pending=4, pack=2, group=2)

    @rule(more=st.integers(1, 6), pending=st.integers(1, 6), pack=st.integers(1, 4), group=st.integers(1, 4))
    def goes_on(self, more: int, pending: int, pack: int, group: int) -> None:
        self._run(more, pending=pending, pack=pack, group=group)

    @rule(point=st.sampled_from(POINTS), nth=st.integers(1, 3), more=st.integers(1, 6), group=st.integers(1, 3))
    def fails(self, point: str, nth: int, more: int, group: int) -> None:
        faults.arm(f"{point}:raise:{nth}")
        try:
            self._run(more, pending=4, pack=2, group=group)
        except InjectedFault:
            done = read_status(self.data)["committed_txid"]
            assert len(self.turns) <= done <= len(self.turns) + more
            self.decided = done + group
            self._planned(done)
        finally:
            faults.arm("")

    @rule(pick=PICK)
    def is_rewound(self, pick: int) -> None:
        if len(self.turns) == 1:
            return
        txid = 1 + pick % (len(self.turns) - 1)
        try:
            made = txstorm.rewind(self.data, txid)
        except StateError as error:
            assert "the layout merge keeps a state at the ends of groups only" in str(error), error
            # The rewind is refused after the take-over, which has published what a failed run had decided.
            self._planned(read_status(self.data)["committed_txid"])
            return
        first, last = made["taken_back"]
        assert (made["txid"], first) == (txid, txid + 1)
        assert last >= len(self.turns)  # what a failed run had decided is published before it is taken back
        self.turn += 1
        del self.turns[txid:]

    @rule(pick=PICK)
    def savepoint_is_made(self, pick: int) -> None:
        name, txid = next(self.names), 1 + pick % len(self.turns)
        try:
            txstorm.create_savepoint(self.data, name, txid=txid)
        except StateError as error:
            assert "the layout merge keeps a state at the ends of groups only" in str(error), error
            assert txid < len(self.turns)
        else:
            self.savepoints[name] = self.turns[:txid]

    @rule(pick=PICK)
    def savepoint_is_deleted(self, pick: int) -> None:
        if not self.savepoints:
            return
        name = sorted(self.savepoints)[pick % len(self.savepoints)]
        assert txstorm.delete_savepoint(self.data, name).txid == len(self.savepoints.pop(name))

    @rule(pick=PICK)
    def savepoint_is_restored(self, pick: int) -> None:
        if not self.savepoints:
            return
        name = sorted(self.savepoints)[pick % len(self.savepoints)]
        copy = self.place / f"copy-{next(self.names)}"
        txstorm.restore_savepoint(self.data, name, copy, topology="copy")
        cut = txstorm.snapshot(copy)
        assert (cut.txid, found_in(cut)) == (len(self.savepoints[name]), expected(self.savepoints[name]))
        shutil.rmtree(copy)

    @rule(pick=PICK)
    def an_older_transaction_is_read(self, pick: int) -> None:
        txid = 1 + pick % len(self.turns)
        cut = txstorm.snapshot(self.data, txid)
        sums, _, rows = expected(self.turns[:txid])
        assert {row["k"]: row["sum"] for row in cut.state("sums").to_arrow().to_pylist()} == sums
        assert sorted((row["_txid"], row["n"]) for row in cut.sink("rows").to_arrow().to_pylist()) == rows

    @invariant()
    def all_is_there(self) -> None:
        if self.turns:
            cut = txstorm.snapshot(self.data)
            assert (cut.txid, found_in(cut)) == (len(self.turns), expected(self.turns))
            kept = {name: len(turns) for name, turns in self.savepoints.items()}
            assert {one.name: one.txid for one in txstorm.list_savepoints(self.data)} == kept

    def teardown(self) -> None:
        try:
            if self.turns:
                self._run(1, pending=1, pack=1, group=1)
                self.all_is_there()
        finally:
            shutil.rmtree(self.place, ignore_errors=True)

    def _run(self, more: int, *, pending: int, pack: int, group: int) -> None:
        builder = TransactionalTopologyBuilder("machine", "numbers", Numbers(self.turn))
        builder.set_committer_bolt("keep", Keep(), 2).fields_grouping("numbers", ["k"])
        limits = {"max_spout_pending": pending, "max_pack_txids": pack, "max_group_txids": group}
        made = builder.build_topology().with_settings(limits)
        until = len(self.turns) + more
        run(made, engine="local", data_dir=self.data, until_txid=until).awaitTermination()
        done = read_status(self.data)["committed_txid"]
        assert until <= done <= max(until, self.decided)  # a take-over publishes the whole group that was decided
        self._planned(done)

    def _planned(self, until: int) -> None:
        """Add the transactions up to `until` to the model, as planned in the current turn."""
        self.turns += [self.turn] * (until - len(self.turns))


@pytest.mark.parametrize(("examples", "steps"), [(4, 9), pytest.param(60, 20, marks=pytest.mark.long)])
def test_any_order_of_calls(examples, steps):
    options = {"max_examples": examples, "stateful_step_count": steps, "deadline": None, "print_blob": True}
    options |= {"database": None, "suppress_health_check": list(HealthCheck)}
    run_state_machine_as_test(TopologyMachine, settings=settings(**options))
