"""Commit target: the port for everything that is committed with a txid, in processing order from handle to close.

Keyed states, collections, sinks, maps, outlets, stateful bolts and filled join stores are targets. A target gives the
tasks of its component their handles, holds the rows of txids that have finished and are not published, stages and
publishes them. Tasks of the engine may stage rows too: a worker makes the target of a table without a place, fills it,
and stages its rows at the `StagingPlace`, in one file for each txid, which the driver takes over. Nothing refers to the
files of failed attempts, and the sweep removes them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from threading import RLock
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from txstorm.api.attempt import TransactionAttempt
from txstorm.errors import StateError, TableCorrupt
from txstorm.storage.tables.identity import TableRef
from txstorm.storage.tables.intent import CHANGES, STATE, Intent, IntentTable, Staged, TxidRecord, encode_schema
from txstorm.storage.tables.staging import IN_DRIVER, StagedName, digest, stage
from txstorm.storage.tables.table import DeltaTableState

ROWS_AT_ONCE = 50_000
"""Number of rows per batch when a staged file is read into the index."""


class TaskHandle(Protocol):
    """Handle of one task for one target in one txid.

    Attributes:
        active: whether `finish_batch` of the task is running; at other times, using the handle raises an error.
    """

    active: bool


def used_outside(what: str) -> StateError:
    """Return the error for a handle, named `what`, that is used while `finish_batch` of its task is not running."""
    return StateError(
        f"{what} used outside finish_batch; state is read and written in finish_batch of a committer only: collect in "
        "execute, write there"
    )


H = TypeVar("H", bound=TaskHandle)
E = TypeVar("E")


class Target(ABC, Generic[H, E]):
    """Port: a table, or something outside of the tables, that commit groups write to; used in txid order.

    The order of calls is `begin`, `handle` for each task, `end_txid`; then `stage`, `publish` and `apply` for a group
    of txids, or `drop_from`. One thread may stage and publish a group while another one fills or drops a later group;
    `finish_batch` of a txid may run while an earlier txid is applied. `H` is the type of handles, `E` that of what all
    tasks have written in one ended txid.

    Attributes:
        accessor: name of the `txstorm.api.context.TaskContext` method that returns its handles.
        holds: description of its contents, for error messages.
        ref: its kind and name.
        schema: the schema of the rows that `changes` returns.
        component, path: the component that declares it, and its directory; known once it has a place.
        applied: the last txid whose rows, if any, have been added to the index.
        is_due: whether a group whose last txid has a given stamp must write here even if it has no rows for it.
    """

    accessor: ClassVar[str]
    holds: ClassVar[str]
    path: Path

    def __init__(self, ref: TableRef, schema: pa.Schema, component: str = "") -> None:
        self.ref, self.schema, self.component = ref, schema, component
        self.is_due: Callable[[int], bool] = lambda stamp: False
        self.applied = 0
        self._open: dict[int, dict[tuple[str, int], H]] = {}
        self._ended: dict[int, E] = {}
        self._lock = RLock()
        self._table: DeltaTableState | None = None
        self._lasts = [0]  # the last published txid, and the last txids of its staged groups
        self._staged: dict[str, int] = {}
        self._in_memory: dict[int, pa.Table] = {}  # the staged rows of each group, by its last txid
        self._leftover: list[tuple[int, Path]] = []  # published files that no log refers to, with the last txids
        self._by_tasks: dict[int, Sequence[Staged]] = {}  # the files that tasks have staged, by txid
        self._files = RLock()  # never held while rows are read or applied

    def place(self, component: str, data_dir: Path, table: DeltaTableState | None = None) -> None:
        """Give it its component and directory and, for a state or sink, the Delta table that it is published to."""
        self.component, self.path, self._table = component, data_dir / self.ref.uri, table
        self.last = 0 if table is None else table.last_txid()

    @property
    def name(self) -> str:
        """The name under which its component asks for it."""
        return self.ref.name

    @property
    def last(self) -> int:
        """The last txid published to it, as far as this run knows."""
        return self._lasts[0]

    @last.setter
    def last(self, txid: int) -> None:
        self._lasts, self.applied = [txid], txid

    # -- one txid -----------------------------------------------------------------------------------------------

    def begin(self, txid: int, stamp: int) -> None:
        """Begin the turn of `txid`, planned at `stamp` (UTC microseconds); called before any read in that txid."""

    def handle(self, component: str, task: int, txid: int) -> H:
        """Return the handle of one task in `txid`: the same object until the txid ends or is dropped."""
        with self._lock:
            tasks = self._open.setdefault(txid, {})
            if (component, task) not in tasks:
                tasks[component, task] = self._new_handle(component, task, txid)
            return tasks[component, task]

    @abstractmethod
    def _new_handle(self, component: str, task: int, txid: int) -> H:
        """Create the handle of a task that has none yet."""

    def undo(self, component: str, task: int, txid: int) -> None:
        """Discard the writes of one task in `txid`, which has not ended; its handle must not be used afterwards."""
        with self._lock:
            handle = self._open.get(txid, {}).pop((component, task), None)
            if handle is not None:
                handle.active = False

    def settle(self, component: str, task: int, txid: int) -> None:
        """Check the task's writes now, rather than when `txid` ends; raise `StateError` if the target cannot hold them.

        Does nothing in implementations that check every write immediately.
        """

    def end_txid(self, txid: int) -> None:
        """Take over the tasks' writes of `txid`; called after all its tasks have finished, in txid order.

        Raises:
            StateError: two tasks changed the same key, or a row does not fit the columns.
        """
        with self._lock:
            tasks = self._open.get(txid, {})
            for handle in tasks.values():
                handle.active = False
            ended = self._together(txid, tasks)
            self._open.pop(txid, None)
            if ended is not None:
                self._ended[txid] = ended
                self._lay_over(ended)

    @abstractmethod
    def _together(self, txid: int, tasks: Mapping[tuple[str, int], H]) -> E | None:
        """Combine the writes of the tasks in `txid`; None if there are none. Called with the lock held."""

    def _lay_over(self, ended: E) -> None:
        """Let later txids see the writes of the txid that has just ended, if they can be seen before publication."""

    def _keep_ended(self, ended: dict[int, E]) -> None:
        """Replace the ended txids. An overlay is made anew, since readers may still use the old one."""
        self._ended = ended

    def end_reads(self, txid: int) -> None:
        """End reads of `txid`, before its turn; raise `StateError` if there were writes. Only states are read then."""

    def drop_from(self, txid: int) -> None:
        """Discard `txid` and every later txid, ended or staged or not; none of them may have been published."""
        with self._lock:
            for later in [open_ for open_ in self._open if open_ >= txid]:
                for handle in self._open.pop(later).values():
                    handle.active = False
            self._drop_ended(txid)
        with self._files:
            self._lasts = [self._lasts[0], *(one for one in self._lasts[1:] if one < txid)]
            self._staged = {path: last for path, last in self._staged.items() if last < txid}
            self._in_memory = {last: rows for last, rows in self._in_memory.items() if last < txid}
            self._by_tasks = {one: parts for one, parts in self._by_tasks.items() if one < txid}

    def _drop_ended(self, txid: int) -> None:
        """Discard the ended txids starting with `txid`; called with the lock held."""
        self._keep_ended({one: ended for one, ended in self._ended.items() if one < txid})

    def changes(self, first: int, last: int) -> pa.Table | None:
        """Return the rows to publish for the ended txids `first` to `last`, in txid order; None if there are none."""
        with self._lock:
            ended = {txid: one for txid, one in self._ended.items() if first <= txid <= last}
        return self._rows_of(ended) if ended else None

    @abstractmethod
    def _rows_of(self, ended: Mapping[int, E]) -> pa.Table | None:
        """Convert the writes of ended txids to rows, by `schema` or one of their own; None if there are no rows."""

    # -- one group of txids -------------------------------------------------------------------------------------

    def take_over(self, txid: int, files: Sequence[Staged]) -> None:
        """Accept durable files as the rows of `txid`; called before it ends, once its attempt is final.

        Raises:
            TableCorrupt: a file is missing, or differs from what its task has written.
        """
        for one in files:
            file = self.path / one.path
            found = digest(file.read_bytes()) if file.is_file() else None
            if found != one.digest:
                what = "is not there" if found is None else f"has digest {found[:16]}…, expected {one.digest[:16]}…"
                raise TableCorrupt(
                    f"staged file {file}: a task has written it, but here it {what}; workers must see the data "
                    "directory under the same path as the driver: mount it there, or have rows staged in the driver "
                    "with large_commit_rows=none, large_commit_bytes=none and a high spill_bytes"
                )
        with self._files:
            self._by_tasks[txid] = tuple(files)

    def staging(self, txids: Sequence[TxidRecord], epoch: int) -> Callable[[], IntentTable] | None:
        """Return a function that stages the rows of the consecutive `txids`; None if there is nothing to stage.

        Raises:
            StateError: the txids are published already.
        """
        first, last = txids[0], txids[-1]
        with self._files:
            files = [file for one in txids if one.txid in self._by_tasks for file in self._by_tasks[one.txid]]
        rows = self.changes(first.txid, last.txid)
        if rows is None or not rows.num_rows:
            if not files and not self.is_due(last.stamp):
                return None
            rows = None if files else self.schema.empty_table()
        with self._files:
            if not (below := bisect_left(self._lasts, first.txid)):
                msg = f"txid {first.txid} cannot be staged: the table is already at {self.last}; open the state again"
                raise StateError(msg)
            previous = self._lasts[below - 1]
        return partial(self._stage, rows, files, previous, last, epoch)

    def _stage(
        self, rows: pa.Table | None, files: Sequence[Staged], previous: int, last: TxidRecord, epoch: int
    ) -> IntentTable:
        """Stage the rows that are in memory, if any, beside the `files` of tasks."""
        if rows is not None:
            name = StagedName(epoch, last.txid, last.attempt_id, self.component, IN_DRIVER)
            files = [*files, stage(self.path, rows, name)]
        with self._files:
            if self.ref.kind == CHANGES and rows is not None:
                self._in_memory[last.txid] = rows
            if self._lasts[-1] < last.txid:
                self._lasts.append(last.txid)
            self._staged.update((one.path, last.txid) for one in files)
        ref, (staged, *more), schema = self.ref, files, (self if rows is None else rows).schema
        return IntentTable(ref.kind, ref.name, ref.uri, encode_schema(schema), previous, staged, tuple(more))

    def in_use(self) -> set[str]:
        """Return the staged files that are not published but may still be, as paths relative to `path`.

        They are those of the driver, and those that it has taken over from tasks; tasks may be writing further ones.
        """
        with self._files:
            return {*self._staged, *(one.path for parts in self._by_tasks.values() for one in parts)}

    def publish(
        self, number: int, table: IntentTable, intent: Intent, epoch: int
    ) -> tuple[int | None, pa.Table | None]:
        """Publish the rows of `intent` that are staged for `table`; idempotent: may be repeated after any failure.

        Passes the fault points ``p7.<number>.…``.

        Returns the version of the table, None outside of the tables; and the published rows, if they are in memory.

        Raises:
            FencedError: a newer coordinator leads the target.
            TableCorrupt: the staged rows are damaged, or the target is not at the txid that the intent expects.
            BlockedError: the commit cannot be made, or the external system refuses it or cannot be reached.
        """
        version = self._put(number, table, intent, epoch)
        last = intent.last
        with self._files:
            self._lasts = [last, *(one for one in self._lasts if one > last)]
            self._staged = {path: one for path, one in self._staged.items() if one > last}
            rows = self._in_memory.get(last)
            self._in_memory = {one: kept for one, kept in self._in_memory.items() if one > last}
            if self.ref.outside or self.ref.kind == STATE:
                self._leftover += [(last, self.path / one.path) for one in table.files]
        return version, rows

    def _put(self, number: int, table: IntentTable, intent: Intent, epoch: int) -> int | None:
        """Publish to the target itself, unless the rows are there already; raise the errors of `publish`."""
        assert self._table is not None
        return self._table.publish(number, table, intent, epoch)

    def apply(self, last: int) -> None:
        """Release the rows of the published txids up to `last`, which are read from the index or store from now on."""
        self._release(last)
        with self._files:
            parts = {one: self._by_tasks.pop(one) for one in sorted(self._by_tasks) if one <= last}
        for txid, files in parts.items():
            self._enter(self._staged_tables(files), txid)
        self.applied = max(self.applied, last)

    def forget(self, before: int) -> None:
        """Delete the staged files of groups that end before txid `before`, whose intents are no longer kept.

        Only maps, outlets and tables with the layout ``merge`` have such files: the staged files of other tables are
        part of the table once they are published.
        """
        for last, path in self._leftover:
            if last < before:
                path.unlink(missing_ok=True)
        self._leftover = [one for one in self._leftover if one[0] >= before]

    def _staged_tables(self, files: Sequence[Staged]) -> Iterator[pa.Table]:
        for one in files:
            with pq.ParquetFile(self.path / one.path, page_checksum_verification=True) as file:
                for batch in file.iter_batches(ROWS_AT_ONCE):
                    yield pa.Table.from_batches([batch])

    def _release(self, last: int) -> None:
        """Release the rows in memory of the published txids up to `last`, after adding them to the index, if any."""
        with self._lock:
            self._keep_ended({one: ended for one, ended in self._ended.items() if one > last})

    def _enter(self, tables: Iterable[pa.Table], txid: int) -> None:
        """Add rows of `txid` that tasks have staged to the index, if there is one; called after `_release`."""


class StagingPlace(NamedTuple):
    """Place where tasks stage rows: the data directory, by a path that workers see, and the coordinator's epoch."""

    data_dir: str
    epoch: int

    def stage(
        self, written: Mapping[str, Target[Any, Any]], attempt: TransactionAttempt, component: str, task: int
    ) -> dict[str, Staged]:
        """Stage durably what a task has written in `attempt`: table → its rows, whose txid is ended here.

        Returns table → its staged file, for tables with rows.

        Raises:
            StateError: a row does not match its table.
            OSError: the disk is full.
        """
        files, name = {}, StagedName(self.epoch, *attempt, component, str(task))
        for uri, target in written.items():
            target.end_txid(attempt.txid)
            rows = target.changes(attempt.txid, attempt.txid)
            if rows is not None and rows.num_rows:
                files[uri] = stage(Path(self.data_dir) / uri, rows, name)
        return files
