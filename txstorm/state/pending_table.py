"""Pending table: the unpublished rows of one table, and the files in which the driver or tasks have staged them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from threading import RLock
from typing import Any

import pyarrow as pa

from txstorm.errors import StateError
from txstorm.state.task_staging import TaskStagedFiles
from txstorm.state.unpublished import Unpublished
from txstorm.storage.tables.identity import TableRef
from txstorm.storage.tables.intent import CHANGES, IntentTable, Staged, TxidRecord, encode_schema
from txstorm.storage.tables.staging import IN_DRIVER, StagedName, stage


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
        self._parts: dict[int, TaskStagedFiles] = {}
        self._lock = RLock()

    def staging(self, txids: Sequence[TxidRecord], epoch: int) -> Callable[[], IntentTable] | None:
        """Return a function that stages the rows of the consecutive `txids`; None if there is nothing to stage."""
        first, last = txids[0], txids[-1]
        with self._lock:
            files = [file for one in txids if one.txid in self._parts for file in self._parts[one.txid].files]
        rows = self.rows.changes(first.txid, last.txid)
        if rows is None or not rows.num_rows:
            if not files and not self._is_due(last.stamp):
                return None
            rows = None if files else self.rows.schema.empty_table()
        with self._lock:
            previous = self._lasts.before(first.txid)
        return partial(self._stage, rows, files, previous, last, epoch)

    def _stage(
        self, rows: pa.Table | None, files: Sequence[Staged], previous: int, last: TxidRecord, epoch: int
    ) -> IntentTable:
        """Stage the rows that are in memory, if any, beside the `files` of tasks."""
        if rows is not None:
            name = StagedName(epoch, last.txid, last.attempt_id, self.component, IN_DRIVER)
            files = [*files, stage(self.path, rows, name)]
        with self._lock:
            if self.ref.kind == CHANGES and rows is not None:
                self._rows[last.txid] = rows
            self._lasts.staged(last.txid)
            self._staged.update((one.path, last.txid) for one in files)
        ref, (staged, *more), schema = self.ref, files, (self.rows if rows is None else rows).schema
        return IntentTable(ref.kind, ref.name, ref.uri, encode_schema(schema), previous, staged, tuple(more))

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
        """Return the staged files that are not published but may still be, as paths relative to the table.

        They are those of the driver, and those that it has taken over from tasks; tasks may be writing further ones.
        """
        with self._lock:
            return {*self._staged, *(one.path for parts in self._parts.values() for one in parts.files)}

    def drop_from(self, txid: int) -> None:
        """Discard the rows and staged files of `txid` and later txids."""
        self.rows.drop_from(txid)
        with self._lock:
            self._lasts.dropped(txid)
            self._staged = {path: last for path, last in self._staged.items() if last < txid}
            self._rows = {last: rows for last, rows in self._rows.items() if last < txid}
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
            parts = {one: self._parts.pop(one) for one in sorted(self._parts) if one <= txid}
        for one, files in parts.items():
            self.rows.enter(files.rows(), one)
        self.applied = max(self.applied, txid)
