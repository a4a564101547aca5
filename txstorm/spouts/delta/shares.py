"""Shares of a Delta table: the rows that each version brings, file by file, as transactions are made of them."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa

from txstorm.clients.delta.log import PRUNED, info_of
from txstorm.clients.files import checked_path
from txstorm.errors import SpoutError
from txstorm.spouts.delta.columns import FEED, TableColumns, check_protocol
from txstorm.spouts.delta.source_log import Action, Entry, SourceLog
from txstorm.spouts.delta.vectors import Vector

DELETES, CHANGES, CHANGE_COMMITS = "deletes", "changes", "change_commits"
"""What a source may ignore: Spark's ignoreDeletes, ignoreChanges and skipChangeCommits."""
_CACHED = 64


class Share(NamedTuple):
    """Rows of one file that a version adds or, in a feed of changes, removes.

    Attributes:
        version: the version.
        path: the file, relative to the table.
        size: number of its bytes; None: unknown.
        partition: physical name of a partition column → its value as text.
        without: the rows to leave out; None: none.
        only: the rows to take; None: all.
        change: in a feed of changes, what happened to the rows; empty if the file says it.
        at: in a feed of changes, the time of the version in milliseconds since 1970.
    """

    version: int
    path: str
    size: int | None
    partition: Mapping[str, str | None]
    without: Vector | None = None
    only: Vector | None = None
    change: str = ""
    at: int = 0


@dataclass(frozen=True)
class TableSource:
    """A table, and what of it is read.

    Attributes:
        path: the table's directory.
        start: see `DeltaSpout`.
        changes: whether its change data feed is read.
        ignore: what does not stop the source.
    """

    path: Path
    start: str | int | datetime
    changes: bool
    ignore: frozenset[str]


class TableShares:
    """The shares of a table by version, read from its log when they are asked for; thread-safe.

    Args:
        source: the table.
        columns: the columns with which it is read.
    """

    def __init__(self, source: TableSource, columns: TableColumns) -> None:
        self.source, self.columns = source, columns
        self.log = SourceLog(source.path)
        self._lock = threading.RLock()
        self._entries: OrderedDict[int, Sequence[Share]] = OrderedDict()
        self._listed: tuple[int, pa.Table, int] | None = None

    def newest(self) -> int:
        """Return the newest version."""
        with self._lock:
            return self.log.newest()

    def of_version(self, version: int) -> Sequence[Share] | None:
        """Return the shares of a version; None if the table does not have it yet.

        Raises:
            SpoutError: it deletes or changes rows, or columns, or it cannot be read.
        """
        with self._lock:
            if version not in self._entries:
                entry = self.log.entry(version)
                if entry is None:
                    return None
                with self._naming(version):
                    self._check(entry)
                    self._entries[version] = self._shares(entry)
                if len(self._entries) > _CACHED:
                    self._entries.popitem(last=False)
            self._entries.move_to_end(version)
            return self._entries[version]

    def in_snapshot(self, version: int, first: int, most: int) -> Sequence[Share]:
        """Return at most `most` shares of all rows of `version`, from number `first` on."""
        with self._lock:
            if self._listed is None or self._listed[0] != version:
                at = self._entry(version).at if self.source.changes else 0
                self._listed = version, self.log.files(version), at
            _, files, at = self._listed
            change = "insert" if self.source.changes else ""
            with self._naming(version):
                rows = files.slice(first, most).to_pylist()
                return [_share(version, row, change=change, at=at) for row in rows]

    def planned(self, metadata: Any) -> Sequence[Share]:
        """Return the shares of the transaction with `metadata`.

        Raises:
            SpoutError: one of their files, or of their log entries, is missing.
        """
        (version, first), (end, stop), taken = metadata["from"], metadata["to"], list[Share]()
        if metadata["snapshot"]:
            taken += self.in_snapshot(version, first, metadata["files"])
        for number in () if metadata["snapshot"] else range(version, end + (1 if stop else 0)):
            shares = self.of_version(number) or ()
            taken += shares[first if number == version else 0 : stop if number == end else None]
        if len(taken) != metadata["files"]:
            raise self.log.fault(
                f"expected {metadata['files']} files from version {version} to {end}, got {len(taken)}; use the "
                "options (changes, ignore) and the table that the transaction was planned with"
            )
        for share in taken:
            if not (self.source.path / share.path).exists():
                raise gone(self.source.path, share)
        return taken

    def check_feed(self, version: int) -> None:
        """Raise `SpoutError` if the change data feed does not reach back to `version`."""
        if self.source.changes:
            self._check_feed(version, self.log.shape(version).properties)

    def _entry(self, version: int) -> Entry:
        entry = self.log.entry(version)
        if entry is None:
            raise self.log.fault(f"has no version {version}")
        return entry

    def _check(self, entry: Entry) -> None:
        """Raise `SpoutError` if a version is not to be read by this source."""
        if entry.protocol is not None:
            check_protocol(self.log, entry.protocol, entry.version)
        if entry.table is not None:
            self._check_table(entry)
        self._check_rewind(entry)
        if not entry.removes or self.source.changes or self._passes_over(entry):
            return
        kind, spoken = (CHANGES, "changes") if entry.adds else (DELETES, "deletes")
        if CHANGES not in self.source.ignore and kind not in self.source.ignore:
            operation = entry.info.get("operation", "an unknown operation")
            repeated = " (rewritten rows then come again)" if entry.adds else ""
            raise self.log.fault(
                f"version {entry.version} ({operation}) {spoken} rows, for example those of "
                f"{unquote(entry.removes[0]['path'])}; read its change data feed (changes=True), or give "
                f"ignore={kind!r}{repeated} or ignore={CHANGE_COMMITS!r}"
            )

    def _check_rewind(self, entry: Entry) -> None:
        """Raise `SpoutError` if a version takes rows of another topology back, which may have been read before it."""
        txid = info_of(entry.info).get("rewind")
        if txid is not None and (entry.removes or entry.adds):
            raise self.log.fault(
                f"version {entry.version} rewinds the topology that writes it to its txid {txid}: rows of later ones, "
                "which may have been read, are taken back, and come again. Rewind this topology to txid 0, or start a "
                "new data directory: with start='earliest' it reads the table as it is now, and what follows"
            )

    def _check_table(self, entry: Entry) -> None:
        assert entry.table is not None
        if self.source.changes:
            self._check_feed(entry.version, dict(entry.table.get("configuration") or {}))
        if entry.version <= self.columns.version:
            return
        if changed := self.columns.difference(json.loads(entry.table["schemaString"])["fields"]):
            raise self.log.fault(
                f"version {entry.version} changes its columns {changed}; start the topology again, to read it with "
                "its new columns from there on"
            )

    def _check_feed(self, version: int, properties: Mapping[str, str]) -> None:
        if properties.get(FEED, "").lower() != "true":
            raise self.log.fault(
                f"version {version} has no change data feed: set {FEED} to true, and start after that version"
            )

    def _shares(self, entry: Entry) -> Sequence[Share]:
        if self.source.changes:
            return list(_changes(entry, self.columns.partitions))
        if self._passes_over(entry):
            return ()
        return [_share(entry.version, one) for one in entry.adds]

    def _passes_over(self, entry: Entry) -> bool:
        """Return whether a version is no input: as its reader wants, or since txstorm only removed what was old."""
        skipped = CHANGE_COMMITS in self.source.ignore and bool(entry.removes)
        return skipped or info_of(entry.info).get("kind") == PRUNED

    @contextmanager
    def _naming(self, version: int) -> Iterator[None]:
        """Turn errors of what a version says into one that names it."""
        try:
            yield
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise self.log.fault(f"version {version}: {type(error).__name__}: {error}") from None


def gone(table: Path, share: Share) -> SpoutError:
    """Return the error for a file that is missing."""
    return SpoutError(
        f"delta spout: table {table}: {share.path}, which holds rows of version {share.version}, is missing (VACUUM?); "
        "restore it, or start a new data directory from a later version"
    )


def _share(version: int, action: Action, change: str = "", at: int = 0) -> Share:
    """Return the share of all rows of a file."""
    path, partition = checked_path(unquote(action["path"])), dict(action.get("partitionValues") or {})
    vector = Vector.of(action.get("deletionVector"))
    return Share(version, path, action.get("size"), partition, vector, None, change, at)


def _changes(entry: Entry, partitions: Collection[str]) -> Iterator[Share]:
    """Yield the shares of the change data feed: the files of changes, if it has any; else what files say."""
    metrics = entry.info.get("operationMetrics") or {}
    rows = [metrics.get(f"numTargetRows{what}") for what in ("Inserted", "Updated", "Deleted")]
    if entry.info.get("operation") == "MERGE" and all(one == "0" for one in rows):
        return  # it has rewritten files without a change, as Spark knows it
    if entry.changes:
        yield from (_share(entry.version, one, at=entry.at) for one in entry.changes)
        return
    if partitions and any(one.get("partitionValues") is None for one in entry.removes):
        raise ValueError("it removes files without saying of which partition: its writer did not record that")
    added, removed = ({one["path"]: one for one in actions} for actions in (entry.adds, entry.removes))
    for change, files, others in (("delete", removed, added), ("insert", added, removed)):
        for path, action in files.items():
            share = _share(entry.version, action, change, entry.at)
            if path not in others:
                yield share
            elif (only := Vector.of(others[path].get("deletionVector"))) is not None:
                yield share._replace(only=only)
