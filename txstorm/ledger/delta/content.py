"""Content of a Delta ledger as seen by one handle, which reads and appends versions and writes snapshots."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from txstorm.clients.delta.control_log import ControlTable, local_path
from txstorm.clients.files import PRIVATE, make_directories
from txstorm.errors import ConflictError, DataDirectoryError, LedgerCorrupt, TableCorrupt, TxstormError
from txstorm.ledger.delta.versions import (
    CREATE,
    FORMAT,
    PROPERTY,
    SCHEMA,
    SNAPSHOT,
    Content,
    checked,
    decode_snapshot,
    document_of,
    encode_snapshot,
    snapshot_path,
    snapshot_version,
)

log = logging.getLogger(__name__)

SNAPSHOT_EVERY = 64
"""Number of versions between snapshots. A snapshot is one file with all entries; the log before the previous one is
then removed."""
TRIES = 5
Pause = Callable[[float], None]


class DeltaContent:
    """The table of a Delta ledger, with its content as of the last version read; not thread-safe.

    Attributes:
        uri: the table.
        content: the entries and the lease as of the last version read.
    """

    def __init__(self, uri: str, *, create: bool, at: str, pause: Pause = time.sleep) -> None:
        self.uri = uri
        self._where = f"ledger {uri}"
        self._pause = pause
        if create and ControlTable.open(uri) is None:
            document = document_of(CREATE, uuid.uuid4().hex, at=at)
            if (path := local_path(uri)) is not None:
                make_directories(path, PRIVATE)
            ControlTable.create(uri, SCHEMA, {PROPERTY: str(FORMAT)}, document)
        self._table, self.content = self._opened()

    def _opened(self) -> tuple[ControlTable, Content]:
        """Open the table at its newest version; its content is that of the snapshot with all later versions applied."""
        for _ in range(TRIES):
            table = ControlTable.open(self.uri)
            if table is None:
                msg = f"{self._where}: expected a ledger in a Delta table, found none; name the right one with --ledger"
                raise DataDirectoryError(msg)
            self._check_ours(table)
            content = self._snapshot(table)
            if content is not None and self._follow(table, content):
                return table, content
            self._pause(0.05)  # the log was truncated while it was read
        raise LedgerCorrupt(f"{self._where}: expected the log since the last snapshot, got a log with gaps; restore it")

    def _check_ours(self, table: ControlTable) -> None:
        found = table.properties.get(PROPERTY)
        if found != str(FORMAT):
            what = "another Delta table" if found is None else f"format {found}"
            msg = f"{self._where}: expected a txstorm ledger of format {FORMAT}, got {what}; name another place"
            raise DataDirectoryError(msg)

    def _snapshot(self, table: ControlTable) -> Content | None:
        """Read the content as of the snapshot; None if its files have been deleted because a newer snapshot exists."""
        paths = table.paths()
        version = snapshot_version(paths, self._where)
        data = table.files.read(paths[0]) if paths else b""
        document = table.entry(version)
        if data is None or document is None:
            return None
        entries = decode_snapshot(data, f"{self._where}, {paths[0]}") if paths else {}
        content = Content(version=version - 1, snapshot=version, entries=entries)
        content.apply(checked(document, f"{self._where}, version {version}"))
        return content

    def _follow(self, table: ControlTable, content: Content) -> bool:
        """Apply all later versions to `content`; return False if one of them has already been deleted from the log."""
        while (document := self._entry(table, content.version + 1)) is not None:
            content.apply(document)
        # The log is truncated from its old end: while the last known version exists, no later one was deleted.
        return table.exists(content.version)

    def _entry(self, table: ControlTable, version: int) -> Mapping[str, Any] | None:
        try:
            document = table.entry(version)
        except TableCorrupt as cause:
            raise LedgerCorrupt(str(cause)) from cause
        return None if document is None else checked(document, f"{self._where}, version {version}")

    def catch_up(self) -> None:
        """Apply all versions up to the newest one."""
        if not self._follow(self._table, self.content):
            self._reopen()

    def _reopen(self) -> None:
        before = self._table
        self._table, self.content = self._opened()
        self._table.owe(before)

    def distrust(self) -> None:
        """Make the next durable `append` rewrite all versions since the snapshot, even those of other processes."""
        self._table.distrust(range(self.content.snapshot, self.content.version + 1))

    def append(self, document: Mapping[str, Any], *, durable: bool = True) -> bool:
        """Append `document` as the next version; if another writer was faster, apply its version and return False.

        Every retry is the same document at the same version, so that at most one of them takes effect.

        Raises:
            TxstormError: the store does not respond; it is unknown whether the document was appended.
        """
        cause: TxstormError | None = None
        for number in range(TRIES):
            if number:
                self._pause(0.05 * 2**number)
            try:
                made = self._tried(document)
            except DataDirectoryError:
                raise
            except TxstormError as error:
                cause = error
                continue
            if made and durable:
                self._table.sync()
            return made
        assert cause is not None
        raise cause

    def _tried(self, document: Mapping[str, Any]) -> bool:
        if self._table.version < self.content.version:
            self._table.advance()
        version = self.content.version + 1
        failure: TxstormError | None = None
        if self._table.version == self.content.version:
            try:
                self._table.append(document)
            except ConflictError:
                pass  # perhaps by our own earlier attempt, whose response was lost
            except TxstormError as error:
                failure = error
            else:
                self.content.apply(document)
                return True
        found = self._entry(self._table, version)
        if found is None and failure is not None:
            raise failure
        if found is None:  # truncated; a handle that slept while it replaced its last entry may have put that back
            self._reopen()
        else:
            self.catch_up()
        return found is not None and found.get("id") == document["id"]

    def tidy(self, clock: Callable[[], datetime], by: str) -> None:
        """Every `SNAPSHOT_EVERY` versions, write a snapshot and truncate the log; a failure is only logged.

        The previous snapshot and all versions since then are kept for handles that are still reading them.
        """
        if self.content.version - self.content.snapshot < SNAPSHOT_EVERY:
            return
        try:
            self._write_snapshot(clock, by)
        except (TxstormError, OSError) as cause:
            log.warning("%s: no snapshot: %s", self._where, cause)

    def _write_snapshot(self, clock: Callable[[], datetime], by: str) -> None:
        before, unique = self.content.snapshot, uuid.uuid4().hex
        if self._table.version < self.content.version:
            self._table.advance()
        version = self.content.version + 1
        if self._table.version != self.content.version:
            return  # another writer was faster
        old, path, data = self._table.paths(), snapshot_path(version, unique), encode_snapshot(self.content.entries)
        self._table.files.write(path, data)
        document = document_of(SNAPSHOT, unique, at=clock().isoformat(), by=by, lease=self.content.lease)
        try:
            self._table.append(document, [(path, len(data))], old)
        except ConflictError:
            self._table.files.remove(path)
            return
        self._table.sync()
        self.content.apply(document)
        self._table.advance()
        self._table.checkpoint()
        self._forget(before, {path, *old})

    def _forget(self, before: int, kept: set[str]) -> None:
        """Remove everything that the snapshot of version `before` had already superseded, except the files `kept`."""
        self._table.forget(before)
        for name in self._table.files.names("snapshots"):
            path = f"snapshots/{name}"
            if path not in kept and snapshot_version([path], self._where) < self.content.snapshot:
                self._table.files.remove(path)
