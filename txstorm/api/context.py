"""Task context: identity, settings and transaction of a task, facts of its plan, a committer's access to its tables."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, NamedTuple, Protocol

from txstorm.api.attempt import TransactionAttempt
from txstorm.api.names import counted
from txstorm.api.state import CollectionHandle, SinkHandle, StateHandle

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Kind = Literal["data", "heartbeat", "end"]
MAX_ENDS = 10_000
"""Number of window ends that a component fires in a transaction at most, unless `max_ends_per_txid` says otherwise."""


class SourceFacts(NamedTuple):
    """Facts about a source, fixed when a transaction is planned; the same on every replay.

    Attributes:
        partitions: names of its partitions; empty if they are unknown.
        caught_up: whether the plan reaches the end that the source had at that time; False if that is unknown.
        ended: whether nothing will follow after this transaction.
    """

    partitions: tuple[str, ...] = ()
    caught_up: bool = False
    ended: bool = False


@dataclass(frozen=True)
class PlanFacts:
    """Facts of a transaction, fixed when it is planned (P1).

    Attributes:
        kind: ``data``, or what a system transaction is: a ``heartbeat``, or the ``end`` of input.
        sources: name of a source → its facts. The only source of a spout that is not composite has the spout's id.
        pinned: component → the value that its `pin` returned.
        epoch: epoch of the coordinator that planned the transaction.
        max_ends: number of window ends that a component fires in it at most; None: no limit.
        resumes: for the end of input, the components that the transaction before it left with ends to fire; empty for
            the first transaction of the end of input.
        clock: the source's clock: the last offset of each partition that this transaction or an earlier one counts;
            None if the source has no clocks.
    """

    kind: Kind = "data"
    sources: Mapping[str, SourceFacts] = field(default_factory=dict)
    pinned: Mapping[str, Any] = field(default_factory=dict)
    epoch: int = 0
    max_ends: int | None = MAX_ENDS
    resumes: tuple[str, ...] = ()
    clock: Mapping[str, int] | None = None

    @property
    def system(self) -> bool:
        """Whether no source contributes to the transaction."""
        return self.kind != "data"


NO_FACTS = PlanFacts()


class HeldBack(NamedTuple):
    """The partition that holds a join back: the one whose newest tuple is the oldest.

    Attributes:
        component, stream: the input.
        partition: its name; empty if the input is one partition.
        since: how long, by stamps, it has had no data.
    """

    component: str
    stream: str
    partition: str
    since: timedelta

    def __str__(self) -> str:
        partition = f"partition {self.partition!r} of " if self.partition else ""
        return (
            f"held back by {partition}{self.component}/{self.stream}, {self.since.total_seconds():,.1f} s without data"
        )


_WORDS = {
    "windows": ("watermark", "window", " fired", "late tuple"),
    "join": ("right position", "result", "", "late left row"),
    "feed": ("position", "row", " put", ""),
    "sync": ("consumed time", "row", " passed", ""),
}
"""Kind of a component with event time → how its watermark is called, what it counts, and what is late."""


@dataclass(frozen=True)
class WindowProgress:
    """Progress of a windowed component in one transaction, or in all transactions of a run so far.

    Attributes:
        watermark: its watermark after the transaction; None while undefined, `datetime.max` (UTC) at the end of input;
            for windows of processing time, the stamp of the transaction.
        delay: how far the watermark is behind the stamp of the transaction; None if undefined, at the end of input, or
            if no live source feeds the component.
        fired: number of windows that fired; for aggregates and joins, number of results; for a `StoreFeed`, of rows
            put; for a `DataDelaySync`, of rows passed.
        late: number of late tuples.
        held_back_by: the partition that holds the watermark back, for joins the position of the right side; None if
            that is unknown.
        kind: what the component is: ``windows``; ``join`` or ``feed``, whose watermark is the position of the right
            side; or ``sync``, whose watermark is the consumed time.
        waiting: number of window ends that the watermark has reached, but that have not fired.
        waiting_since: the time of the oldest tuple of the first of them, when they began to wait; None if none waits.
        waiting_rate: how many of them a transaction fires.
        ahead: number of tuples that were too far ahead of the stamp to move the watermark as far as they say.
    """

    watermark: datetime | None = None
    delay: timedelta | None = None
    fired: int = 0
    late: int = 0
    held_back_by: HeldBack | None = None
    kind: str = "windows"
    waiting: int = 0
    ahead: int = 0
    waiting_since: datetime | None = None
    waiting_rate: int = 0

    def label(self, component: str) -> str:
        """Return how the component is called in lines that show its progress."""
        return f"windows of {component}" if self.kind == "windows" else f"{self.kind} {component}"

    def after(self, before: WindowProgress | None) -> WindowProgress:
        """Return this progress with the numbers of an earlier transaction, or of another task, added."""
        if before is None:
            return self
        held = self.held_back_by or before.held_back_by
        numbers = {name: getattr(self, name) + getattr(before, name) for name in ("fired", "late", "ahead")}
        return replace(self, held_back_by=held, **numbers)

    def to_json(self) -> dict[str, Any]:
        """Return the progress as JSON: the watermark in ISO 8601 or ``end of input``, the delay in seconds."""
        ended = self.watermark is not None and self.watermark.replace(tzinfo=None) == datetime.max  # noqa: DTZ901
        shown: dict[str, Any] = {
            "watermark": "end of input" if ended else self.watermark and self.watermark.isoformat(),
            "delay": None if self.delay is None else self.delay.total_seconds(),
            "fired": self.fired,
            "late": self.late,
            "ahead": self.ahead,
            "waiting": self.waiting,
        }
        if self.waiting_since is not None:
            shown |= {"waiting_since": self.waiting_since.isoformat(), "waiting_rate": self.waiting_rate}
        held = self.held_back_by
        if held is not None:
            shown["held_back_by"] = {**held._asdict(), "since": held.since.total_seconds()}
        return shown

    def __str__(self) -> str:
        shown = self.to_json()
        name, what, done, missed = _WORDS[self.kind]
        watermark = f"{name} {shown['watermark'] or 'undefined'}"
        behind = "" if self.delay is None else f", {self.delay.total_seconds():,.1f} s behind"
        held = "" if self.held_back_by is None else f", {self.held_back_by}"
        late = f", {counted(self.late, missed)}" if missed else ""
        late += f", {counted(self.ahead, 'tuple')} ahead" if self.ahead else ""
        if self.waiting_since is not None:
            waiting = f"{counted(self.waiting, 'window end')} waiting since a tuple of {self.waiting_since.isoformat()}"
            late += f", {waiting}, {self.waiting_rate:,} per transaction"
        return f"{watermark}{behind}, {counted(self.fired, what)}{done}{late}{held}"


@dataclass(frozen=True)
class WorkProgress:
    """Progress of the work on a transaction, or on a pack of them, while it goes on.

    Attributes:
        first, last: the txids.
        phase: ``processing`` or ``committing``.
        seconds: how long it has been going on.
        done, tasks: numbers of the tasks that are done and of all, a task counting once per stage; 0 if unknown.
        rows: number of rows that the spout has emitted; None if unknown, as on Spark.
        place: the task whose code runs, as ``split[1]``; empty if unknown.
        row: number of rows that this task has taken or, if it is one of the spout, has emitted.
    """

    first: int = 0
    last: int = 0
    phase: str = "processing"
    seconds: float = 0.0
    done: int = 0
    tasks: int = 0
    rows: int | None = None
    place: str = ""
    row: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the attributes, and ``text``: what `str` returns."""
        return {**asdict(self), "seconds": round(self.seconds, 3), "text": str(self)}

    def __str__(self) -> str:
        txids = f"txid {self.first}" if self.first == self.last else f"txids {self.first}-{self.last}"
        facts = [
            "" if self.rows is None else f"{counted(self.rows, 'row')} read",
            f"{self.done:,} of {counted(self.tasks, 'task')} done" if self.tasks else "",
            f"{self.place} at row {self.row:,}" if self.place else "",
        ]
        return ", ".join([f"{txids} {self.phase} for {self.seconds:,.1f} s", *filter(None, facts)])


class CommitResources(Protocol):
    """A committer's access to its tables, for one txid and task."""

    def state(self, component: str, task: int, name: str) -> StateHandle:
        """Return the handle of the state `name` declared by `component`."""

    def collection(self, component: str, task: int, name: str, tasks: int = 1) -> CollectionHandle:
        """Return the handle of the collection state `name` declared by `component`, which has `tasks` tasks."""

    def sink(self, component: str, task: int, name: str) -> SinkHandle:
        """Return the handle of the sink `name` declared by `component`."""

    def managed(self, component: str, task: int) -> Any:
        """Return the handle of what `component`, which txstorm has made, commits outside of the tables; None: nothing.

        That is the turn of a stateful bolt, or the use of a join store. A replay has none: it changes nothing outside.
        """


@dataclass
class TaskContext:
    """A task's view of itself and its transaction; passed to `prepare` of bolts and to `emitter` of spouts.

    Attributes:
        topology: the topology's id.
        component: the component's id.
        task: index of this task within its component, from 0.
        parallelism: number of tasks of the component.
        settings: the topology's settings, overridden by the component's own configuration.
        attempt: the current attempt; for spouts None while no batch is being emitted.
        stamp: processing time of this txid in UTC microseconds since 1970, the same on every replay of a recorded
            plan. Use it instead of the clock, which would differ between attempts.
        source: (component, stream, task) that emitted the current record batch; set during `execute_batch`.
        payload: for emitters, the return value of `SpoutCoordinator.payload` for this txid.
        facts: what was fixed when this txid was planned.
        resources: the committer's tables; None outside the commit phase.
        alarm: receives the times passed to `wake_at`; None unless this is a committer with timers.
        report: receives the progress of a windowed component's task; None outside the commit phase.
        subscribed: the streams of the component that are read; None: all may be.
        divert: makes a result that is left out a dead letter, if the policy says so; returns whether it does.
        upstream_waits: returns whether a component upstream of this one has window ends to fire that its watermark
            has reached; None: none has.
        resumed: whether the end of input, if it is one, goes on for this component or comes to it only now.
    """

    topology: str
    component: str
    task: int
    parallelism: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    attempt: TransactionAttempt | None = None
    stamp: int = 0
    source: tuple[str, str, int] | None = None
    payload: Any = None
    facts: PlanFacts = field(default=NO_FACTS, repr=False)
    resources: CommitResources | None = field(default=None, repr=False)
    alarm: Callable[[int], None] | None = field(default=None, repr=False)
    report: Callable[[WindowProgress], None] | None = field(default=None, repr=False)
    subscribed: frozenset[str] | None = field(default=None, repr=False)
    divert: Callable[[BaseException, Any], bool] | None = field(default=None, repr=False)
    upstream_waits: Callable[[], bool] | None = field(default=None, repr=False)
    resumed: bool = True

    @property
    def now(self) -> datetime:
        """The processing time of this txid, as a timezone-aware datetime in UTC."""
        return EPOCH + timedelta(microseconds=self.stamp)

    @property
    def heartbeat(self) -> bool:
        """Whether this is a system transaction: no source contributes to it, but every task of every bolt is called."""
        return self.facts.system

    @property
    def end_of_input(self) -> bool:
        """Whether this is the end-of-input transaction: a heartbeat after which nothing comes to this component.

        If components upstream have more window ends to fire than a transaction may, that is a later one.
        """
        return self.facts.kind == "end" and self.resumed and not self.waits

    @property
    def waits(self) -> bool:
        """Whether a component upstream of this one still has window ends to fire that its watermark has reached."""
        return self.upstream_waits is not None and self.upstream_waits()

    @property
    def sources(self) -> Mapping[str, SourceFacts]:
        """Name of a source → its facts; a spout that is not composite is one source, named by its id."""
        return self.facts.sources

    @property
    def pinned(self) -> Any:
        """The value that this component's `pin` returned when the transaction was planned; None without one."""
        return self.facts.pinned.get(self.component)

    @property
    def epoch(self) -> int:
        """Epoch of the coordinator that planned this transaction: it increases with every start of the topology."""
        return self.facts.epoch

    def is_read(self, stream: str) -> bool:
        """Return whether anything reads a stream of this component; if not, its tuples need not be made."""
        return self.subscribed is None or stream in self.subscribed

    def wake_at(self, when: datetime | int) -> None:
        """Ask for a transaction at or after `when`, if need be a heartbeat; for committers with ``timers = True``.

        Call in `finish_batch`, in every transaction: the earliest time that the tasks of a component ask for replaces
        the time of the transaction before.

        Args:
            when: an aware datetime, or UTC microseconds since 1970.

        Raises:
            StateError: the component is not a committer whose class says ``timers = True``.
            InputError: `when` is a naive datetime or something else.
        """
        from txstorm.errors import InputError, StateError

        if self.alarm is None:
            raise StateError(f"{self.component}: wake_at is for committers with timers; set timers = True in its class")
        if isinstance(when, datetime) and when.tzinfo is not None:
            self.alarm((when - EPOCH) // timedelta(microseconds=1))
        elif type(when) is int:
            self.alarm(when)
        else:
            msg = f"{self.component}: wake_at takes an aware datetime or microseconds since 1970, got {when!r}"
            raise InputError(msg)

    def leave_out(self, error: BaseException, record: Any) -> None:
        """Leave out one result of this committer, described by `record` (JSON values), because of `error`.

        Raises `error`, unless the retry policy makes a dead letter of it: then all other results are committed.
        """
        if self.divert is None or not self.divert(error, record):
            raise error

    def random(self) -> random.Random:
        """Return a random generator seeded with topology, component, task and txid: replays draw the same numbers."""
        txid = getattr(self.attempt, "txid", self.attempt) or 0  # an attempt of another type is itself the seed
        return random.Random(f"{self.topology}/{self.component}/{self.task}/{txid}")  # noqa: S311 - not for secrets

    def state(self, name: str) -> StateHandle:
        """Return the handle of this committer's `KeyedState` named `name`; usable in `finish_batch` only."""
        return self._resources("state", name).state(self.component, self.task, name)

    def collection(self, name: str) -> CollectionHandle:
        """Return the handle of this committer's `CollectionState` named `name`; usable in `finish_batch` only."""
        resources = self._resources("state", name)
        return resources.collection(self.component, self.task, name, self.parallelism)

    def sink(self, name: str) -> SinkHandle:
        """Return the handle of this committer's `SinkTable` or `Outlet` named `name`; usable in `finish_batch` only."""
        return self._resources("sink", name).sink(self.component, self.task, name)

    def managed(self) -> Any:
        """Return what a committer of txstorm commits outside of the tables; see `CommitResources.managed`."""
        return None if self.resources is None else self.resources.managed(self.component, self.task)

    def _resources(self, kind: str, name: str) -> CommitResources:
        from txstorm.errors import StateError

        if self.resources is None:
            raise StateError(
                f"{self.component}: {kind} {name!r} asked for in the processing phase; only committers have tables, "
                "and only in finish_batch: mark the bolt with Committer or use set_committer_bolt"
            )
        return self.resources
