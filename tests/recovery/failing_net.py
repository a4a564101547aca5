"""A topology with user code in every possible place, each of which can be made to raise an error."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from watched import SETTINGS, Gathering, PlannedSpout

from txstorm import BasicBolt, Committer, FailedException, ReportedFailedException, TransactionalTopologyBuilder
from txstorm.api.state import KeyedState, SinkTable
from txstorm.sinks import DeltaSink

ERRORS = {"failed": FailedException, "reported": ReportedFailedException, "value": ValueError, "exit": SystemExit}
TUPLES = ("basic.execute", "batch.execute", "keep.execute", "behind.execute")
"""Places that see one tuple; with record batches they see some."""
GROUPINGS = ("grouping", "behind.grouping")
PLACES = ("is_ready", "initialize", "emitter", "basic.prepare", "batch.prepare", "batch.finish", "keep.prepare")
PLACES += ("keep.finish", "behind.prepare", "behind.finish", *TUPLES, *GROUPINGS)
COORDINATOR = PLACES[:2]


class Trouble:
    """A plan of errors, place in the code → (txid, name of the error), raised once each or always, in any process."""

    def __init__(
        self, place: Path, plan: Mapping[str, tuple[int, str]] = MappingProxyType({}), *, always=False
    ) -> None:
        self.marks, self.plan, self.always = place / "marks", dict(plan), always
        self.marks.mkdir(parents=True, exist_ok=True)

    def __call__(self, place: str, txid: int) -> None:
        when, error = self.plan.get(place, (0, ""))
        if when == txid and (self.always or self._first(place)):
            raise ERRORS[error](f"trouble in {place}")

    def _first(self, place: str) -> bool:
        try:
            (self.marks / place).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def raised(self) -> set[str]:
        return {mark.name for mark in self.marks.iterdir()}


class Numbers(PlannedSpout):
    """A spout whose transaction N has the numbers 2N - 1 and 2N."""

    def __init__(self, trouble: Trouble) -> None:
        self.trouble, self.asked = trouble, 0

    def coordinator(self, context):
        self.asked = 0
        return self

    def is_ready(self):
        self.asked += 1
        self.trouble("is_ready", self.asked)
        return True

    def initialize_transaction(self, txid, prev_metadata):
        self.trouble("initialize", txid)
        return [2 * txid - 1, 2 * txid]

    def emit(self, context, attempt, metadata, collector):
        for n in metadata:
            if n % context.parallelism == context.task:
                collector.emit(n)
                self.trouble("emitter", attempt.txid)


class ByNumber:
    """A custom grouping by number; it derives the txid, for the plan of errors, from the number."""

    def __init__(self, trouble: Trouble, place: str) -> None:
        self.trouble, self.place = trouble, place

    def prepare(self, component, stream, targets):
        self.targets = targets

    def choose_tasks(self, source_task, values):
        (n,) = values
        if n % 2:
            self.trouble(self.place, (n + 1) // 2)
        return [n % self.targets]


class Basic(BasicBolt):
    """A basic bolt that raises for odd numbers, after it has emitted."""

    fields = ("n",)

    def __init__(self, trouble: Trouble) -> None:
        self.trouble = trouble

    def prepare(self, context):
        self.trouble("basic.prepare", context.attempt.txid)

    def execute(self, tuple, collector):
        collector.emit(tuple["n"])
        if tuple["n"] % 2:
            self.trouble("basic.execute", (tuple["n"] + 1) // 2)


class BasicRows(Basic):
    def execute_batch(self, batch, collector):
        collector.emit_batch(batch)
        for n in batch.column("n").to_pylist():
            if n % 2:
                self.trouble("basic.execute", (n + 1) // 2)


class Batch(Gathering):
    """A batch bolt that emits its input at the end of the batch; raises for odd numbers."""

    fields = ("n",)

    def __init__(self, trouble: Trouble, name: str) -> None:
        self.trouble, self.name = trouble, name

    def prepare(self, context, collector, attempt):
        super().prepare(context, collector, attempt)
        self.trouble(f"{self.name}.prepare", attempt.txid)

    def execute(self, tuple):
        self.take(tuple["n"])

    def take(self, n):
        self.taken.append(n)
        if n % 2:
            self.trouble(f"{self.name}.execute", (n + 1) // 2)

    def finish_batch(self):
        for n in self.taken:
            self.collector.emit(n)
        if self.taken:
            self.trouble(f"{self.name}.finish", self.attempt.txid)


class Keep(Batch, Committer):
    seen = KeyedState("seen", key={"n": int}, value={"times": int})
    kept = SinkTable("kept", {"n": int})

    def finish_batch(self):
        for n in self.taken:
            self.context.state("seen").update(n, lambda old: (old or 0) + 1)
            self.context.sink("kept").append(n)
        super().finish_batch()


class Rows:
    """Mixin of batch bolts that get their input as record batches."""

    def execute_batch(self, batch):
        for n in batch.column("n").to_pylist():
            self.take(n)


class BatchRows(Rows, Batch):
    pass


class KeepRows(Rows, Keep):
    pass


def failing_net(trouble: Trouble, *, rows: bool = False, **settings: Any) -> Any:
    """Build numbers(2) → basic(2) → batch(2) → keep(2), a committer → behind(2) → end, a committer; (n): tasks."""
    basic, batch, keep = (BasicRows, BatchRows, KeepRows) if rows else (Basic, Batch, Keep)
    builder = TransactionalTopologyBuilder("failing", "numbers", Numbers(trouble), 2)
    builder.set_bolt("basic", basic(trouble), 2).local_or_shuffle_grouping("numbers")
    builder.set_bolt("batch", batch(trouble, "batch"), 2).custom_grouping("basic", ByNumber(trouble, "grouping"))
    builder.set_bolt("keep", keep(trouble, "keep"), 2).fields_grouping("batch", ["n"])
    behind = builder.set_bolt("behind", batch(trouble, "behind"), 2)
    behind.custom_grouping("keep", ByNumber(trouble, "behind.grouping"))
    builder.set_bolt("end", DeltaSink("ended", {"n": int})).global_grouping("behind")
    return builder.build_topology().with_settings({**SETTINGS, **settings})
