"""Pending table: the unpublished rows of one table, and the files in which the driver or tasks have staged them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import RLock
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from txstorm.errors import StateError, TableCorrupt
from txstorm.state.unpublished import Unpublished
from txstorm.storage.tables.identity import TableRef
from txstorm.storage.tables.intent import CHANGES, STAGED, IntentTable, Staged, TxidRecord, encode_schema
from txstorm.storage.tables.staging import StagedName, digest, stage

ROWS_AT_ONCE = 50_000
"""Number of rows per batch when a staged file is read into the index."""


@dataclass(frozen=True)
class TaskStagedFiles:
    """Rows of one table and one txid that commit-job tasks have staged.

    Attributes:
        table: the table's directory.
        files: the staged files; empty if there are no rows.
    """

    table: Path
    files: Sequence[Staged]

    def check(self) -> None:
        """Raise `TableCorrupt` unless all files exist with exactly the bytes that their tasks have written."""
        for one in self.files:
            file = self.table / one.path
            found = digest(file.read_bytes()) if file.is_file() else None
            if found != one.digest:
                what = "is not there" if found is None else f"has digest {found[:16]}…, expected {one.digest[:16]}…"
                msg = (
                    f"staged file {file}: a task of a large commit has written it, but here it {what}; workers must "
                    "see the data directory under the same path as the driver: mount it there, or have commits made in "
                    "the driver with large_commit_rows=none and large_commit_bytes=none"
                )
                raise TableCorrupt(msg)

    def rows(self) -> Iterator[pa.Table]:
        """Read all rows, in batches."""
        for one in self.files:
            with pq.ParquetFile(self.table / one.path, page_checksum_verification=True) as file:
                for batch in file.iter_batches(ROWS_AT_ONCE):
                    yield pa.Table.from_batches([batch])


def staged_like(table: Path, name: StagedName) -> set[str]:
    """Find the files staged for `table` with the epoch, txid and attempt of `name`; return their relative paths."""
    found = (table / STAGED).glob(f"{name.epoch}-{name.txid}-{name.attempt}-*.parquet")
    return {f"{STAGED}/{file.name}" for file in found}


class PublishedTxids:
    """The last published txid of one table, and the last txids of its staged groups. Not thread-safe."""

    def __init__(self, published: int) -> None:
        self._txids = [published]

    def before(self, txid: int) -> int:
        """Return the last txid published or staged before `txid`; raise `StateError` if `txid` is already published."""
        below = bisect_left(self._txids, txid)
        if not below:
            msg = f"txid {txid} cannot be staged: the table is already at {self._txids[0]}; open the state again"
            raise StateError(msg)
        return self._txids[below - 1]

    def staged(self, txid: int) -> None:
        """Record that a group ending with `txid` was staged."""
        if self._txids[-1] < txid:
            self._txids.append(txid)

    def dropped(self, txid: int) -> None:
        """Discard the staged groups that end with `txid` or later; published groups are kept."""
        self._txids = [self._txids[0], *(one for one in self._txids[1:] if one < txid)]

    def published(self, txid: int) -> None:
        """Record that the group ending with `txid` is published."""
        self._txids = [txid, *(one for one in self._txids if one > txid)]


class PendingTable:
    """A table, map or outlet that commit groups write to: its unpublished rows in memory, and their staged files.

    One thread may stage and publish a group while another thread fills or drops a later group.

    Attributes:
        component: the component that declares it.
        path: its directory.
        ref: its kind and name.
        rows: the unpublished rows.
        applied: the last txid whose rows, if any, have been added to the index.

    Args:
        last: the last published txid.
        is_due: whether a group whose last txid has a given stamp must write to the table even if it has no rows for it.
    """

    def __init__(
        self,
        component: str,
        path: Path,
        ref: TableRef,
        rows: Unpublished[Any],
        last: int,
        is_due: Callable[[int], bool] = lambda stamp: False,
    ) -> None:
        self.component = component
        self.path = path
        self.ref = ref
        self.rows = rows
        self.applied = last
        self._lasts = PublishedTxids(last)
        self._is_due = is_due
        self._staged: dict[str, int] = {}
        self._rows: dict[int, pa.Table] = {}  # the staged rows of each group, by its last txid
        self._expected: dict[int, StagedName] = {}
        self._parts: dict[int, TaskStagedFiles] = {}
        self._lock = RLock()

    def staging(self, txids: Sequence[TxidRecord], epoch: int) -> Callable[[], IntentTable] | None:
        """Return a function that stages the rows of the consecutive `txids`; None if there is nothing to stage."""
        first, last = txids[0], txids[-1]
        with self._lock:
            parts = self._parts.get(last.txid)
        if parts is not None and parts.files:  # the txid of a large commit forms a group by itself
            files = parts.files
            with self._lock:
                previous = self._lasts.before(first.txid)
            return lambda: self._intent(self.rows.schema, previous, last.txid, files)
        rows = self.rows.changes(first.txid, last.txid)
        if rows is None or not rows.num_rows:
            if not self._is_due(last.stamp):
                return None
            rows = self.rows.schema.empty_table()
        with self._lock:
            previous = self._lasts.before(first.txid)
        return partial(self._stage, rows, previous, last, epoch)

    def _stage(self, rows: pa.Table, previous: int, last: TxidRecord, epoch: int) -> IntentTable:
        staged = stage(self.path, rows, StagedName(epoch, last.txid, last.attempt_id, self.component, "all"))
        if self.ref.kind == CHANGES:
            with self._lock:
                self._rows[last.txid] = rows
        return self._intent(rows.schema, previous, last.txid, [staged])

    def _intent(self, schema: pa.Schema, previous: int, txid: int, files: Sequence[Staged]) -> IntentTable:
        with self._lock:
            self._lasts.staged(txid)
            self._staged.update((one.path, txid) for one in files)
        ref, (staged, *more) = self.ref, files
        return IntentTable(ref.kind, ref.name, ref.uri, encode_schema(schema), previous, staged, tuple(more))

    def expect(self, name: StagedName) -> None:
        """Announce that commit-job tasks will stage the rows of a txid, in files named like `name`."""
        with self._lock:
            self._expected[name.txid] = name

    def take_over(self, txid: int, files: Sequence[Staged]) -> None:
        """Accept durable files as the rows of `txid`; called before it ends, once its attempt is final.

        Raises:
            TableCorrupt: a file is missing, or differs from what its task has written.
        """
        parts = TaskStagedFiles(self.path, tuple(files))
        parts.check()
        with self._lock:
            self._parts[txid] = parts

    def unpublished(self) -> set[str]:
        """Return the staged files that are not published but may still be, as paths relative to the table."""
        with self._lock:
            return set(self._staged).union(*(staged_like(self.path, name) for name in self._expected.values()))

    def drop_from(self, txid: int) -> None:
        """Discard the rows and staged files of `txid` and later txids."""
        self.rows.drop_from(txid)
        with self._lock:
            self._lasts.dropped(txid)
            self._staged = {path: last for path, last in self._staged.items() if last < txid}
            self._rows = {last: rows for last, rows in self._rows.items() if last < txid}
            self._expected = {one: name for one, name in self._expected.items() if one < txid}
            self._parts = {one: parts for one, parts in self._parts.items() if one < txid}

    def published(self, txid: int) -> pa.Table | None:
        """Record that the group ending with `txid` is published; return its change rows if in memory, else None."""
        with self._lock:
            self._lasts.published(txid)
            self._staged = {path: last for path, last in self._staged.items() if last > txid}
            rows = self._rows.get(txid)
            self._rows = {last: one for last, one in self._rows.items() if last > txid}
        return rows

    def apply(self, txid: int) -> None:
        """Move the rows of the published txids up to `txid` into the index."""
        self.rows.apply(txid)
        with self._lock:
            parts = self._parts.pop(txid, None)
            self._expected = {one: name for one, name in self._expected.items() if one > txid}
        if parts is not None:
            self.rows.enter(parts.rows(), txid)
        self.applied = max(self.applied, txid)
