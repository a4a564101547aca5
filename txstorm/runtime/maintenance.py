"""Table maintenance during a run: compaction, small-file compaction, log checkpoints, thinning, history retention.

Files are written on separate threads; log entries are committed on the publishing thread, between two groups. Retention
also runs at a clean stop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

from txstorm import faults
from txstorm.books.books import Books
from txstorm.books.savepoint import kept_versions
from txstorm.clients.delta.archive import Shortening
from txstorm.errors import FencedError, TxstormError
from txstorm.lanes import Lanes, Task
from txstorm.runtime.batches.wall_clock import StampClock
from txstorm.storage.tables.history import HISTORY
from txstorm.storage.tables.identity import TableRef
from txstorm.storage.tables.intent import CHANGES, STATE
from txstorm.storage.tables.table import DeltaTableState
from txstorm.storage.upkeep.compaction import Compaction
from txstorm.storage.upkeep.retention import Steps, find_horizon, keep_only, prune_changes, prune_history, retain_table
from txstorm.storage.upkeep.schedule import UpkeepSchedule
from txstorm.storage.upkeep.small_files import SmallFileCompaction

log = logging.getLogger(__name__)

LEAST_SECONDS = 60.0
"""Minimum interval, in seconds, between two retention passes while the topology runs."""
SHARE = 10
"""Number of retention passes per `history_retention` period."""


class Retention:
    """Removes history older than `history_retention`. Its steps run on the publishing thread, between two groups.

    Args:
        schedule: the maintenance of the tables.
        books: the ledger's content.
        timeline: the current timeline.
        seconds: the setting `history_retention`, in seconds.
        lanes: give the clocks.
        clock: gives the time to which the age of history refers; while that is in doubt, none is removed.
    """

    def __init__(
        self,
        schedule: UpkeepSchedule,
        books: Books,
        timeline: int,
        seconds: float,
        lanes: Lanes,
        clock: StampClock,
    ) -> None:
        self._schedule, self._books, self._timeline = schedule, books, timeline
        self._seconds, self._lanes, self._clock = seconds, lanes, clock
        self._begun = lanes.monotonic()

    def is_due(self) -> bool:
        """Return whether the next retention pass is due; called by the driver thread."""
        return self._lanes.monotonic() - self._begun >= max(LEAST_SECONDS, self._seconds / SHARE)

    def steps(self) -> Steps[None]:
        """Advance the start of the retained history, record it in the ledger, and remove older data.

        Savepoints are read after the new start has been recorded, so a savepoint that is created concurrently either
        respects the new start or is respected here.

        Raises:
            FencedError: another coordinator has taken over.
            TableCorrupt: a table log, or data needed by a savepoint, is damaged.
        """
        self._begun = self._lanes.monotonic()
        data_dir, since = self._schedule.data_dir, self._clock.now() - int(self._seconds * 1_000_000)
        if not self._clock.settled:
            return
        horizon = yield from find_horizon(data_dir, self._timeline, since)
        if horizon is None:
            return
        faults.point("retain.before")
        if horizon.txid > self._books.kept():
            self._books.write_kept(horizon.txid)
        faults.point("retain.announced")
        yield None
        yield from self._tables(horizon.txid)
        version = yield from prune_history(data_dir, horizon.files, self._millis)
        yield None
        yield from keep_only(data_dir, data_dir / HISTORY, version)
        faults.point("retain.after")
        log.info("the retained history begins with txid %s", horizon.txid)

    def _tables(self, txid: int) -> Steps[None]:
        schedule, epoch = self._schedule, self._books.epoch
        saved = kept_versions(self._books.savepoints().values())
        tables = sorted(schedule.tables.items(), key=lambda item: item[0].kind != STATE)  # states before their changes
        states: dict[str, int | None] = {}
        for ref, table in tables:
            if ref.kind == CHANGES and (as_of := states.get(ref.name)) is not None:
                table.refresh()
                prune_changes(table, as_of, epoch, self._millis)
                yield None
            kept_files = partial(self._kept, ref)
            as_of = yield from retain_table(
                schedule.data_dir, table, txid, epoch, saved.get(ref.uri, frozenset()), kept_files
            )
            if ref.kind == STATE:
                states[ref.name] = as_of

    def _kept(self, ref: TableRef) -> set[str]:
        return self._schedule.kept_files(ref, self._books.intents())

    @property
    def _millis(self) -> int:
        return self._lanes.now() // 1000


IDLE_SECONDS = 5.0
THIN_SECONDS = 1.0
PAUSE = 60.0
"""Back-off, in seconds, after a failed maintenance task, and after a start without a commit."""


class Upkeep:
    """Maintains the tables while the topology runs. Call from the driver thread only.

    Args:
        schedule: determines which maintenance is due, and carries it out.
        in_turn: queues a call for the publishing thread, where it runs between two groups.
        back: queues a call for the driver thread.
        fail: ends the run with an error.
        lanes: run what writes files.
        retention: removes expired history; None: history is kept forever.
    """

    def __init__(
        self,
        schedule: UpkeepSchedule,
        in_turn: Callable[[Callable[[], Any]], Future[Any]],
        back: Callable[[Callable[[], None]], None],
        fail: Callable[[BaseException], None],
        lanes: Lanes,
        retention: Retention | None = None,
    ) -> None:
        self._schedule, self._in_turn, self._back, self._fail = schedule, in_turn, back, fail
        self._lanes, self._retention = lanes, retention
        self._before: list[str] | None = None
        self._thinned_at = 0.0
        self._committed_at: float | None = None
        self._not_before = 0.0
        self._opening_until = lanes.monotonic() + PAUSE  # at a start, committers read what they need: this comes first
        self._busy = self._tidying = False
        self._stopping = lanes.event()
        self._starting = lanes.lock()
        self._tasks: list[Task] = []

    def committed(self) -> None:
        """Record that a group was committed, and start to checkpoint one table log that has grown too long, if any."""
        self._opening_until = 0.0
        self._committed_at = self._lanes.monotonic()
        table = None if self._tidying else self._schedule.long_log()
        if table is not None:
            self._tidying = True
            self._shorten(table)

    def _shorten(self, table: DeltaTableState) -> None:
        """Checkpoint and archive a table log during commits: write on a separate thread, then adopt the result."""

        def begin(done: Future[Any]) -> None:
            if (error := done.exception()) is not None:
                self._back(lambda: self._shortened(error))
                return
            self._start(lambda: write(done.result()), "txstorm-log")

        def write(work: Shortening) -> None:
            try:
                all(not self._stopping.is_set() for _ in work.steps())
            except BaseException as error:  # noqa: BLE001 - handed to the driver thread
                failed = error
                self._back(lambda: self._shortened(failed))
            else:
                self._back(lambda: take_up(work))

        def take_up(work: Shortening) -> None:
            answer = self._in_turn(lambda: table.shortened(work))
            answer.add_done_callback(lambda done: self._back(lambda: self._shortened(done.exception())))

        self._in_turn(table.shortening).add_done_callback(begin)

    def _shortened(self, error: BaseException | None) -> None:
        self._tidying = False
        if error is not None:
            self._fail(error)

    def look(self, *, idle: bool) -> None:
        """Start maintenance that is due; after `IDLE_SECONDS` without a commit, also compact tables early.

        A run begins with it after its first commit, or after `PAUSE`.
        """
        now = self._lanes.monotonic()
        if self._busy or now < max(self._not_before, self._opening_until):
            return
        uri, permanent = self._schedule.due(now), False
        if uri is None and idle and self._committed_at is not None and now - self._committed_at > IDLE_SECONDS:
            uri = next(iter(self._schedule.behind()), None)
            self._committed_at = None if uri is None else self._committed_at
        if uri is None and self._retention is not None and self._retention.is_due():
            uri, permanent = self._retain(self._retention), True
        if uri is not None:
            self._busy = True
            self._ask(lambda: self._schedule.begin(uri, self._millis(), stays=permanent), self._begun)
        elif not self._busy and now - self._thinned_at > THIN_SECONDS and self._schedule.has_superseded(self._millis()):
            self._busy, self._thinned_at = True, now
            self._step(self._schedule.thin(self._millis()))

    def _retain(self, retention: Retention) -> str | None:
        """Start retention once every state has a permanent version, which is exempt from thinning.

        Changes before such a version are no longer needed. Returns the URI of a state table that still lacks one; None
        if every state has one.
        """
        if self._before is None:
            self._before = self._schedule.unsettled()
        if self._before:
            return self._before.pop()
        self._before, self._busy = None, True
        self._step(retention.steps())
        return None

    def _step(self, steps: Steps[None], answer: Any = None) -> None:
        """Run the next of `steps` on the publishing thread; a function that a step yields runs on a separate thread."""

        def then(asked: Callable[[], Any] | Upkeep | None) -> None:
            if asked is self or self._stopping.is_set():
                self._ended(None)
            elif callable(asked):
                self._find(asked, lambda answer: self._step(steps, answer))
            else:
                self._step(steps)

        def advanced() -> Any:
            try:
                return steps.send(answer)
            except StopIteration:
                return self

        self._ask(advanced, then)

    def _find(self, asked: Callable[[], Any], then: Callable[[Any], None]) -> None:
        def find() -> None:
            try:
                answer = asked()
            except Exception as error:  # noqa: BLE001 - handed to the driver thread
                failed = error
                self._back(lambda: self._ended(failed))
            else:
                self._back(lambda: then(answer))

        self._start(find, "txstorm-upkeep")

    def _start(self, work: Callable[[], None], name: str) -> bool:
        """Start `work` on a new thread; if the run is ending, return False without starting it. Thread-safe."""
        with self._starting:
            if self._stopping.is_set():
                return False
            task = self._lanes.start(work, name)
            self._tasks = [*(other for other in self._tasks if other.is_alive()), task]
        return True

    def end(self) -> None:
        """Stop the maintenance in progress after the current file; vacuum later removes the files it has written."""
        with self._starting:
            self._stopping.set()
        for task in self._tasks:
            task.join()

    def _ask(self, call: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """Run `call` on the publishing thread, then call `then` with its result on the driver thread."""

        def answer(done: Future[Any]) -> None:
            error = done.exception()
            self._back(lambda: self._ended(error) if error is not None else then(done.result()))

        self._in_turn(call).add_done_callback(answer)

    def _begun(self, work: Compaction | SmallFileCompaction | None) -> None:
        if work is None or self._stopping.is_set():
            self._not_before = self._lanes.monotonic() + 1.0
            self._ended(None)
            return
        if not self._start(lambda: self._write(work), "txstorm-upkeep"):
            work.give_up()

    def _write(self, work: Compaction | SmallFileCompaction) -> None:
        try:
            if all(not self._stopping.is_set() for _ in work.steps()):
                done = partial(self._schedule.finish, work)
                self._back(lambda: self._ask(lambda: done(self._millis()), lambda _: self._ended(None)))
            else:
                work.give_up()
        except Exception as error:  # noqa: BLE001 - handed to the driver thread
            failed = error
            work.give_up()
            self._back(lambda: self._ended(failed))

    def _ended(self, error: BaseException | None) -> None:
        """Finish a maintenance task. The run survives its failure: readers then merge changes with an older version."""
        self._busy = False
        if isinstance(error, TxstormError | OSError) and not isinstance(error, FencedError):
            log.warning("the upkeep of a table failed, and is retried later: %s", error)
            self._not_before = self._lanes.monotonic() + PAUSE
        elif error is not None:
            self._fail(error)

    def _millis(self) -> int:
        return self._lanes.now() // 1000
