"""Upkeep beside the commits: state tables are brought up to date, small files gathered, by a thread of its own.

The kept history moves on: what transactions before it needed is removed, beside commits and at a clean stop.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

from txstorm import faults
from txstorm.books.books import Books
from txstorm.books.savepoint import kept_versions
from txstorm.errors import FencedError, TxstormError
from txstorm.state.store import StateStore
from txstorm.storage.tables.history import HISTORY
from txstorm.storage.tables.identity import TableRef
from txstorm.storage.tables.intent import CHANGES, STATE
from txstorm.storage.tables.table import DeltaTableState, Shortening
from txstorm.storage.upkeep.compaction import Compaction
from txstorm.storage.upkeep.retention import Steps, find_horizon, keep_only, prune_changes, prune_history, retain_table
from txstorm.storage.upkeep.small_files import SmallFileCompaction

retention_log = logging.getLogger("txstorm.retention")

LEAST_SECONDS = 60.0
"""Between two times that this is done while a run lives."""
SHARE = 10
"""So many times within `history_retention`."""


class Retention:
    """What `history_retention` asks for; all of it is called in the committer's turn, one step at a time.

    Args:
        store, books: the tables and the ledger.
        timeline: the present one.
        seconds: how long a transaction is kept.
        now: UTC microseconds since 1970.
        monotonic: seconds.
    """

    def __init__(
        self,
        store: StateStore,
        books: Books,
        timeline: int,
        seconds: float,
        now: Callable[[], int],
        monotonic: Callable[[], float],
    ) -> None:
        self._store, self._books, self._timeline = store, books, timeline
        self._seconds, self._now, self._monotonic = seconds, now, monotonic
        self._begun = monotonic()

    def is_due(self) -> bool:
        """Whether it is time again; asked by the driver thread."""
        return self._monotonic() - self._begun >= max(LEAST_SECONDS, self._seconds / SHARE)

    def steps(self) -> Steps[None]:
        """Move the beginning of the kept history, say so in the ledger, and remove what is before it.

        Savepoints are looked at after that is said: one that is made meanwhile sees it, or is seen here.

        Raises:
            FencedError: a newer coordinator has taken over.
            TableCorrupt: a log, or what a savepoint needs, is damaged.
        """
        self._begun = self._monotonic()
        data_dir = self._store.data_dir
        horizon = yield from find_horizon(data_dir, self._timeline, self._now() - int(self._seconds * 1_000_000))
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
        retention_log.info("the kept history begins with txid %s", horizon.txid)

    def _tables(self, txid: int) -> Steps[None]:
        store, epoch = self._store, self._books.epoch
        saved = kept_versions(self._books.savepoints().values())
        tables = sorted(store.tables.items(), key=lambda item: item[0].kind != STATE)  # states before their changes
        states: dict[str, int | None] = {}
        for ref, table in tables:
            if ref.kind == CHANGES and (as_of := states.get(ref.name)) is not None:
                table.refresh()
                prune_changes(table, as_of, epoch, self._millis)
                yield None
            kept = partial(self._kept, ref)
            as_of = yield from retain_table(store.data_dir, table, txid, epoch, saved.get(ref.uri, frozenset()), kept)
            if ref.kind == STATE:
                states[ref.name] = as_of

    def _kept(self, ref: TableRef) -> set[str]:
        return self._store.kept_files(ref, self._books.intents())

    @property
    def _millis(self) -> int:
        return self._now() // 1000


log = logging.getLogger("txstorm.upkeep")

IDLE_SECONDS = 5.0
THIN_SECONDS = 1.0
PAUSE = 60.0
"""Seconds until what has failed is tried again."""


class Upkeep:
    """What is done for the tables while a run lives; told and asked by the driver thread only.

    Args:
        store: the tables.
        in_turn: has a call made in the committer's turn.
        back: has a call made on the driver thread.
        fail: ends the run with an error.
        monotonic: seconds.
        retention: what removes what is older than the kept history; None: it is kept for good.
    """

    def __init__(
        self,
        store: StateStore,
        in_turn: Callable[[Callable[[], Any]], Future[Any]],
        back: Callable[[Callable[[], None]], None],
        fail: Callable[[BaseException], None],
        monotonic: Callable[[], float],
        retention: Retention | None = None,
    ) -> None:
        self._store, self._in_turn, self._back, self._fail = store, in_turn, back, fail
        self._monotonic, self._retention = monotonic, retention
        self._before: list[str] | None = None
        self._thinned_at = 0.0
        self._committed_at: float | None = None
        self._not_before = 0.0
        self._busy = self._tidying = False
        self._stopping = threading.Event()
        self._starting = threading.Lock()
        self._threads: list[threading.Thread] = []

    def committed(self) -> None:
        """A group was committed; one log that has become long is shortened before the next one is published."""
        self._committed_at = self._monotonic()
        table = None if self._tidying else next((one for one in self._store.tables.values() if one.is_long), None)
        if table is not None:
            self._tidying = True
            self._shorten(table)

    def _shorten(self, table: DeltaTableState) -> None:
        """Shorten a log beside commits: what is written on a thread of its own is taken up in the committer's turn."""

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
        """Begin what is due; after some seconds without work, also what would not be yet."""
        now = self._monotonic()
        if self._busy or now < self._not_before:
            return
        uri, stays = self._store.due(now), False
        if uri is None and idle and self._committed_at is not None and now - self._committed_at > IDLE_SECONDS:
            uri = next(iter(self._store.behind()), None)
            self._committed_at = None if uri is None else self._committed_at
        if uri is None and self._retention is not None and self._retention.is_due():
            uri, stays = self._retain(self._retention), True
        if uri is not None:
            self._busy = True
            self._ask(lambda: self._store.upkeep(uri, _millis(), stays=stays), self._begun)
        elif not self._busy and now - self._thinned_at > THIN_SECONDS and self._store.has_superseded(_millis()):
            self._busy, self._thinned_at = True, now
            self._step(self._store.thin(_millis()))

    def _retain(self, retention: Retention) -> str | None:
        """Begin what it asks for, once all states are at versions that stay: older changes then need not be kept.

        Returns the next state that is not.
        """
        if self._before is None:
            self._before = self._store.unsettled()
        if self._before:
            return self._before.pop()
        self._before, self._busy = None, True
        self._step(retention.steps())
        return None

    def _step(self, steps: Steps[None], answer: Any = None) -> None:
        """Advance `steps` in the committer's turn; what one of them asks for is found on a thread beside commits."""

        def then(asked: Callable[[], Any] | Upkeep | None) -> None:
            if asked is self or self._stopping.is_set():
                self._ended(None)
            elif callable(asked):
                self._find(asked, lambda found: self._step(steps, found))
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
                found = asked()
            except Exception as error:  # noqa: BLE001 - handed to the driver thread
                failed = error
                self._back(lambda: self._ended(failed))
            else:
                self._back(lambda: then(found))

        self._start(find, "txstorm-upkeep")

    def _start(self, work: Callable[[], None], name: str) -> bool:
        """Do `work` on a thread of its own; False, and nothing, where the run ends. Called on any thread."""
        with self._starting:
            if self._stopping.is_set():
                return False
            thread = threading.Thread(target=work, name=name, daemon=True)
            thread.start()
            self._threads = [*(one for one in self._threads if one.is_alive()), thread]
        return True

    def end(self) -> None:
        """Leave off what is under way, after the file at hand; what it has written is swept."""
        with self._starting:
            self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, call: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """Have `call` made in the committer's turn, and then `then` with its answer, here."""

        def answer(done: Future[Any]) -> None:
            error = done.exception()
            self._back(lambda: self._ended(error) if error is not None else then(done.result()))

        self._in_turn(call).add_done_callback(answer)

    def _begun(self, work: Compaction | SmallFileCompaction | None) -> None:
        if work is None or self._stopping.is_set():
            self._not_before = self._monotonic() + 1.0
            self._ended(None)
            return
        if not self._start(lambda: self._write(work), "txstorm-upkeep"):
            work.give_up()

    def _write(self, work: Compaction | SmallFileCompaction) -> None:
        try:
            if all(not self._stopping.is_set() for _ in work.steps()):
                self._back(lambda: self._ask(lambda: self._store.upkept(work, _millis()), lambda _: self._ended(None)))
            else:
                work.give_up()
        except Exception as error:  # noqa: BLE001 - handed to the driver thread
            failed = error
            work.give_up()
            self._back(lambda: self._ended(failed))

    def _ended(self, error: BaseException | None) -> None:
        """The run goes on without: readers fold the changes over an older table."""
        self._busy = False
        if isinstance(error, TxstormError | OSError) and not isinstance(error, FencedError):
            log.warning("the upkeep of a table failed, and is tried again later: %s", error)
            self._not_before = self._monotonic() + PAUSE
        elif error is not None:
            self._fail(error)


def _millis() -> int:
    return int(time.time() * 1000)
