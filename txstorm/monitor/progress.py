"""Progress of a run: one record per committed transaction, totals, and a snapshot of the transactions in flight.

It is one module, as the monitor is what makes all of them.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from txstorm.api.attempt import TransactionAttempt
from txstorm.api.context import WindowProgress, WorkProgress
from txstorm.api.names import counted
from txstorm.coordinator.machine import State
from txstorm.display import facts, time_of
from txstorm.lanes import THREADS, start_thread

log = logging.getLogger(__name__)
RECENT = 100
QUEUE = 10_000
"""Maximum number of progress records that wait for the listeners; further records are dropped."""
WINDOW = 10.0
"""Seconds over which the present rate is taken."""
CLOSE_SECONDS = 10.0
"""Seconds for which the end of a run waits until the listeners have received the queued records."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, repr=False)
class TransactionProgress:
    """Progress of one committed transaction.

    Attributes:
        stamp: its processing time, UTC microseconds since 1970.
        tuples: component → number of emitted tuples.
        spout: the spout's id; its tuples are the input.
        pack: number of txids in its job.
        group: number of txids in its commit group.
        job_ms: duration of its job in milliseconds.
        commit_ms: step of the commit → its duration for the group in milliseconds.
        reported: errors that were reported without failing the batch, and messages of the spout.
        dead_letters: number of records that were omitted and stored in the dead-letter table.
        failures: number of earlier failures of the txid, in all runs.
        cause: the error of the last of these failures.
        windows: windowed component → watermark, its delay, and numbers of fired windows and late tuples.
    """

    txid: int
    attempt: int
    stamp: int
    spout: str
    tuples: Mapping[str, int]
    pack: int
    group: int
    job_ms: float
    commit_ms: Mapping[str, float]
    reported: tuple[str, ...] = ()
    dead_letters: int = 0
    failures: int = 0
    cause: str | None = None
    windows: Mapping[str, WindowProgress] = field(default_factory=dict)

    @property
    def timestamp(self) -> str:
        """The processing time in ISO 8601."""
        return (_EPOCH + timedelta(microseconds=self.stamp)).isoformat()

    @property
    def numInputRows(self) -> int:  # noqa: N802 - StreamingQuery's name
        """Number of tuples that the spout emitted."""
        return self.tuples.get(self.spout, 0)

    @property
    def durationMs(self) -> dict[str, float]:  # noqa: N802 - StreamingQuery's name
        """Duration in milliseconds of each step: process, and the steps of the commit."""
        return {"process": round(self.job_ms, 3), **{step: round(ms, 3) for step, ms in self.commit_ms.items()}}

    @property
    def json(self) -> str:
        """The progress as a single line of JSON, with StreamingQuery's keys where they exist."""
        return json.dumps(self._document())

    @property
    def prettyJson(self) -> str:  # noqa: N802 - StreamingQuery's name
        """The progress as indented JSON."""
        return json.dumps(self._document(), indent=2)

    def __repr__(self) -> str:
        times = ", ".join(f"{step} {ms:,.1f}" for step, ms in self.durationMs.items())
        fields = {
            "time": time_of(self.stamp),
            "input": counted(self.numInputRows, "row"),
            "tuples": self.tuples,
            "took": f"{times} ms",
            "pack, group": f"{counted(self.pack, 'txid')}, {counted(self.group, 'txid')}",
            "dead letters": self.dead_letters or None,
            "failed before": f"{counted(self.failures, 'time')}: {self.cause}" if self.failures else None,
            "reported": "; ".join(self.reported) or None,
            **{one.label(component): str(one) for component, one in self.windows.items()},
        }
        return facts(f"txid {self.txid} (attempt {self.attempt})", fields)

    def _document(self) -> dict[str, Any]:
        derived = {"timestamp": self.timestamp, "numInputRows": self.numInputRows, "durationMs": self.durationMs}
        return {**asdict(self), "windows": windows_json(self.windows), **derived}


@dataclass(frozen=True, repr=False)
class Snapshot:
    """Progress of a run at one point in time.

    Attributes:
        in_flight: (txid, attempt id, phase) of active transactions, in txid order.
        committed: the topology's last committed txid; 0 before the first.
        txids, tuples, rows, replays, dead_letters: totals of this run; rows counts the tuples of the spout, tuples
            those of spout and bolts.
        blocked: the reason why a decided group cannot be published; None if none is blocked.
        last_failure: the last failure, with its attempt, until its txid is committed; if the failures before it were
            the same, with their number.
        failures: (txid, number of failures, last cause) of txids not yet committed, in all runs.
        emitted: component → number of emitted tuples.
        undelivered: number of progress records that were dropped because listeners were too slow.
        windows: windowed component → watermark and its delay after the last committed txid; totals of this run.
        working: how far transactions are that take longer than a second: the one that commits, and the oldest job.
        seconds: time since the run began to read, until its end.
        rate: input rows per second that were committed in the last `WINDOW` seconds, or since the beginning.
    """

    in_flight: tuple[tuple[int, int, str], ...] = ()
    committed: int = 0
    txids: int = 0
    tuples: int = 0
    replays: int = 0
    blocked: str | None = None
    last_failure: str | None = None
    dead_letters: int = 0
    failures: tuple[tuple[int, int, str], ...] = ()
    rows: int = 0
    emitted: Mapping[str, int] = field(default_factory=dict)
    undelivered: int = 0
    windows: Mapping[str, WindowProgress] = field(default_factory=dict)
    working: tuple[WorkProgress, ...] = ()
    seconds: float = field(default=0.0, compare=False)
    rate: float = field(default=0.0, compare=False)

    @property
    def average(self) -> float:
        """Input rows per second since the run began to read."""
        return self.rows / self.seconds if self.seconds else 0.0

    def __repr__(self) -> str:
        fields = {
            "committed txid": self.committed,
            "in flight": counted(len(self.in_flight), "txid"),
            "this run": f"{counted(self.txids, 'txid')}, {counted(self.rows, 'input row')}, "
            f"{counted(self.tuples, 'tuple')}, {counted(self.replays, 'replay')}",
            "at work": "; ".join(map(str, self.working)) or None,
            **{one.label(component): str(one) for component, one in self.windows.items()},
            "dead letters": self.dead_letters or None,
            "not delivered to listeners": self.undelivered or None,
            "blocked": self.blocked,
            "last failure": self.last_failure and self.last_failure.partition("\n")[0],
        }
        return facts("progress", fields)


@dataclass
class _Totals:
    txids: int = 0
    tuples: int = 0
    rows: int = 0
    replays: int = 0
    dead_letters: int = 0
    emitted: Counter[str] = field(default_factory=Counter)
    windows: dict[str, WindowProgress] = field(default_factory=dict)


class _Failure(NamedTuple):
    """The last failure: its txid, where it was, its cause, and how often that has occurred in a row."""

    txid: int
    place: str
    cause: str
    times: int

    def __str__(self) -> str:
        repeated = f", {counted(self.times, 'time')}" if self.times > 1 else ""
        return f"{self.place}{repeated}: {self.cause}"


class _Rate:
    """Input rows per second over the last `WINDOW` seconds, from `start`; times come in order. Not thread-safe."""

    def __init__(self, start: float) -> None:
        self.start = start
        self._seen: deque[tuple[float, int]] = deque([(start, 0)])

    def add(self, now: float, rows: int) -> None:
        """Record the total of committed `rows`."""
        self._seen.append((now, rows))
        self._forget(now)

    def at(self, now: float) -> float:
        """Return the rate."""
        self._forget(now)
        seconds = min(WINDOW, now - self.start)
        return (self._seen[-1][1] - self._seen[0][1]) / seconds if seconds > 0 else 0.0

    def _forget(self, now: float) -> None:
        while len(self._seen) > 1 and self._seen[1][0] <= now - WINDOW:
            self._seen.popleft()


Listener = Callable[[TransactionProgress], None]


class _Delivery:
    """Delivery of progress records to the listeners, in order, on a dedicated thread. Thread-safe.

    Each record goes to all listeners before the next one. If the queue is full, new records are dropped: they are
    counted, and a warning is logged once until the queue has room again. The thread starts with the first record.

    Attributes:
        dropped: number of records that were not delivered.
    """

    def __init__(self, listeners: Sequence[Listener]) -> None:
        self._listeners = list(listeners)
        self._changed = threading.Condition()
        self._queue: deque[TransactionProgress] = deque()
        self._closed = False
        self._full = False
        self._thread: threading.Thread | None = None
        self.dropped = 0

    def put(self, progress: TransactionProgress) -> None:
        """Queue a record for delivery, or drop it if the queue is full; returns at once."""
        if not self._listeners:
            return
        with self._changed:
            if len(self._queue) >= QUEUE:
                self.dropped += 1
                if not self._full:
                    what = "listeners are too slow: %s wait for them; new ones are dropped until there is room"
                    log.warning(f"txid %s: {what}", progress.txid, counted(len(self._queue), "progress record"))
                self._full = True
                return
            self._full = False
            self._queue.append(progress)
            if self._thread is None:
                self._thread = start_thread(self._deliver, name="txstorm-listeners")
            self._changed.notify()

    def close(self) -> None:
        """End the thread after the queued records are delivered; drop those left after `CLOSE_SECONDS`."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(CLOSE_SECONDS)
        with self._changed:
            self.dropped += len(self._queue)
            self._queue.clear()
        if self.dropped:
            log.warning("listeners were too slow: they did not receive %s", counted(self.dropped, "progress record"))

    def is_delivering(self) -> bool:
        """Return whether the calling thread is the one that calls the listeners."""
        return threading.current_thread() is self._thread

    def _deliver(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._closed)
                if not self._queue:
                    return
                progress = self._queue.popleft()
            for listener in self._listeners:
                try:
                    listener(_copy(progress))
                except BaseException:
                    what = "a listener raised; the transaction is committed, the run continues"
                    log.exception("txid %s: %s", progress.txid, what)


class Monitor:
    """Observer of a run: collects the reports of the driver, and passes them to listeners. Queries are thread-safe.

    Args:
        listeners: called in order, on one separate thread, after a transaction has been committed. A slow listener
            delays nothing: if too many records wait for it, new records are dropped and counted. An exception of a
            listener is logged and has no effect on the transaction, which is committed.
        monotonic: a clock in seconds.

    Attributes:
        at_work: returns `Snapshot.working`; set by the driver.
    """

    def __init__(self, listeners: Sequence[Listener] = (), monotonic: Callable[[], float] = THREADS.monotonic) -> None:
        self._lock = threading.Lock()
        self._monotonic = monotonic
        self._rate: _Rate | None = None
        self._ended: float | None = None
        self._listeners = _Delivery(listeners)
        self._recent: deque[TransactionProgress] = deque(maxlen=RECENT)
        self._totals = _Totals()
        self._state: State | None = None
        self._blocked: str | None = None
        self._last_failure: _Failure | None = None
        self._failures: dict[int, tuple[int, str]] = {}
        self.at_work: Callable[[], tuple[WorkProgress, ...]] = tuple

    # -- reports of the driver ----------------------------------------------------------------------------------

    def watch(self, state: State) -> None:
        """Record the coordinator's state after an event; the first one is the beginning of the run."""
        self._state = state
        self._rate = self._rate or _Rate(self._monotonic())

    def known_failures(self, failures: Mapping[int, tuple[int, str]]) -> None:
        """Add the failures of earlier runs, txid → (count, last cause). Call before the first event."""
        self._failures = dict(failures)
        if failures:
            txid = min(failures)
            count, cause = failures[txid]
            self._last_failure = _Failure(txid, f"txid {txid}", cause, count)

    def failed(self, attempt: TransactionAttempt, cause: str, count: int = 1) -> None:
        """Record a failed attempt; `count` is the number of failures of its txid."""
        last = self._last_failure
        times = last.times + 1 if last is not None and last.cause == cause else 1
        self._last_failure = _Failure(attempt.txid, str(attempt), cause, times)
        with self._lock:
            self._failures[attempt.txid] = (count, cause)

    def replayed(self) -> None:
        """Count a replay."""
        self._totals.replays += 1

    def blocked(self, cause: str | None) -> None:
        """Record the reason why a decided group cannot be published; None as soon as it can be published again."""
        self._blocked = cause

    def committed(self, done: Sequence[TransactionProgress]) -> None:
        """Add committed transactions to the totals, and queue them for the listeners."""
        with self._lock:
            self._recent.extend(done)
            self._totals.txids += len(done)
            self._totals.tuples += sum(sum(progress.tuples.values()) for progress in done)
            self._totals.rows += sum(progress.numInputRows for progress in done)
            if self._rate is not None:
                self._rate.add(self._monotonic(), self._totals.rows)
            for progress in done:
                self._totals.emitted.update(progress.tuples)
                for component, one in progress.windows.items():
                    totals = one.after(self._totals.windows.get(component))
                    self._totals.windows[component] = replace(totals, held_back_by=one.held_back_by)
            self._totals.dead_letters += sum(progress.dead_letters for progress in done)
            for progress in done:
                self._failures.pop(progress.txid, None)
            if self._last_failure is not None and done and self._last_failure.txid <= done[-1].txid:
                self._last_failure = None
        for progress in done:
            self._listeners.put(progress)

    def close(self) -> None:
        """Stop the clock, and the calls of listeners once queued records are delivered, or after `CLOSE_SECONDS`."""
        self._ended = self._monotonic() if self._ended is None else self._ended
        self._listeners.close()

    # -- queries ------------------------------------------------------------------------------------------------

    def is_calling_listeners(self) -> bool:
        """Return whether the calling thread is the one that calls the listeners."""
        return self._listeners.is_delivering()

    def recent(self) -> list[TransactionProgress]:
        """Return the last `RECENT` committed transactions, oldest first."""
        with self._lock:
            return list(map(_copy, self._recent))

    def snapshot(self) -> Snapshot:
        """Return the current progress of the run."""
        state, totals, failure = self._state, self._totals, self._last_failure
        active = {} if state is None else state.active
        with self._lock:
            failures = tuple((txid, *failure) for txid, failure in sorted(self._failures.items()))
            windows = dict(totals.windows)
            now = self._monotonic() if self._ended is None else self._ended
            seconds, rate = (0.0, 0.0) if self._rate is None else (now - self._rate.start, self._rate.at(now))
        return Snapshot(
            in_flight=tuple((txid, attempt, status.name.lower()) for txid, (attempt, status) in active.items()),
            committed=0 if state is None else state.currtx - 1,
            blocked=self._blocked,
            last_failure=None if failure is None else str(failure),
            failures=failures,
            undelivered=self._listeners.dropped,
            **{**vars(totals), "emitted": dict(totals.emitted), "windows": windows},
            working=self.at_work(),
            seconds=seconds,
            rate=rate,
        )


def windows_json(windows: Mapping[str, WindowProgress]) -> dict[str, dict[str, Any]]:
    """Return the progress of windows as JSON."""
    return {component: one.to_json() for component, one in windows.items()}


def _copy(progress: TransactionProgress) -> TransactionProgress:
    """Copy a progress record, so that a user may change it without affecting other transactions of its group."""
    return replace(
        progress, tuples=dict(progress.tuples), commit_ms=dict(progress.commit_ms), windows=dict(progress.windows)
    )
