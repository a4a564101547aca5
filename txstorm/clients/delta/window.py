"""Window of a table's log: the part needed to read one version, as a directory of links that delta-rs opens instead.

delta-rs lists the log whenever it opens or refreshes a table, or answers a query; with a million entries, this takes a
second. A window contains the newest complete checkpoint and the entries since. It follows the log by probing for the
name of the next entry, so that the log is listed only once, when the table is opened. A reader that opens a table for a
single read needs no links if the log is short: delta-rs then lists the log itself just as fast.

The log of a plain table without a checkpoint is read without delta-rs (`ShortLog`), which would take milliseconds and
several threads: most tables that are opened, those of tests and of first runs above all, have a few entries.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import gettempdir, mkdtemp
from typing import IO, Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa

from txstorm.clients.delta.data_files import parsed
from txstorm.clients.delta.entry import PLAIN
from txstorm.clients.delta.log import (
    ARCHIVE,
    HINT,
    KINDS,
    LOG,
    SIDECARS,
    Actions,
    entry_actions,
    entry_name,
    last_checkpoint,
    newest_complete,
    version_of,
)
from txstorm.clients.files import MOST, check_file
from txstorm.errors import InputError

SHORT = 200
"""Maximum number of files in a log that delta-rs lists itself, for readers that open a table for a single read."""
FEW = 50
"""Maximum number of entries that are read without delta-rs; it takes as long for them."""
_PREFIX = "txstorm-log-"
_LOCK = "lock"
_SINGLE = re.compile(r"\d{20}\.checkpoint\.parquet")


class Window:
    """Directory of links to those files of a log that are needed to read one version of the table.

    Args:
        table: the table's directory.
        checkpoint: the version of the checkpoint with which the window begins; -1: none.
        files: the files of that checkpoint, relative to the table.
        entries: the log entries from the checkpoint on, relative to the table, oldest first.
        linked: whether delta-rs opens a directory of links; otherwise it opens the table itself, at `last`.

    A directory of links is deleted with this object.

    Attributes:
        last: the version with which the window ends; -1 if it has no entry.
        entries: its log entries, relative to the table, oldest first.
    """

    def __init__(
        self, table: Path, checkpoint: int, files: Iterable[str], entries: Iterable[str], *, linked: bool = True
    ) -> None:
        self._table = table.absolute()
        self.checkpoint, self.files, self.entries, self.linked = checkpoint, tuple(files), list(entries), linked
        self._links: Path | None = None
        for file in (*self.files, *self.entries):
            self._check(file)
        self.last = (version_of(self.entries[-1].rpartition("/")[2]) or 0) if self.entries else -1

    @property
    def path(self) -> Path:
        """The directory that delta-rs opens as the table; one of links is created by the first use."""
        if not self.linked:
            return self._table
        if self._links is None:
            self._links = _new_directory(dir=_place_of_process())
            self._end = weakref.finalize(self, _remove, self._links, os.getpid())
            os.mkdir(f"{self._links}/{LOG}")
            if os.path.isdir(f"{self._table}/{LOG}/{SIDECARS}"):
                (self._links / LOG / SIDECARS).symlink_to(self._table / LOG / SIDECARS)
            for file in (*self.files, *self.entries):
                self._link(file)
        return self._links

    @classmethod
    def newest(cls, table: Path, *, once: bool = False) -> Window:
        """Return the window that ends with the newest version; raise `OSError` if part of it is not a regular file.

        `once`: whether the table is opened for a single read; a window on a short log then has no links.
        """
        found = _listed(table, LOG)
        checkpoint, files = _beginning(table, found)
        linked = not (once and _is_simple(table, found, checkpoint))
        return cls(table, checkpoint, files, _entries(found, checkpoint), linked=linked)

    @classmethod
    def until(cls, table: Path, version: int) -> Window:
        """Return the window, from log and archive, that ends with `version`, or with the last existing one before it.

        Retries while its entries are being moved to the archive.
        """
        for _ in range(10):
            with suppress(FileNotFoundError):
                return cls._until(table, version)
        return cls._until(table, version)

    @classmethod
    def _until(cls, table: Path, version: int) -> Window:
        found = _listed(table, LOG)
        checkpoint, files = _beginning(table, found, version)
        if checkpoint < 0 and f"{LOG}/{entry_name(0)}" not in found:
            logged = {Path(path).name for path in found}
            found += [path for path in _listed(table, ARCHIVE) if Path(path).name not in logged]
            checkpoint, files = _beginning(table, found, version)
        return cls(table, checkpoint, files, _entries(found, checkpoint, version))

    def follow(self, version: int | None = None) -> bool:
        """Extend the window to `version` (None: the newest); return False if that would require listing the log."""
        while version is None or self.last < version:
            entry = f"{LOG}/{entry_name(self.last + 1)}"
            try:
                self._check(entry)
            except FileNotFoundError:
                # Entries are archived oldest first: as long as the last one exists, no later one has been archived.
                return self.last >= 0 and os.path.exists(f"{self._table}/{LOG}/{entry_name(self.last)}")
            if self._links is not None:
                self._link(entry)
            self.entries.append(entry)
            self.last += 1
        return True

    def made(self) -> list[Path]:
        """Return the files that delta-rs has written to the window: a checkpoint, and the hint that points to it."""
        found = [self.path / LOG / name for name in sorted(os.listdir(self.path / LOG))]
        return [file for file in found if not file.is_symlink() and file.is_file()]

    def _check(self, file: str) -> None:
        check_file(f"{self._table}/{file}", most=MOST)

    def _link(self, file: str) -> None:
        os.symlink(f"{self._table}/{file}", f"{self._links}/{LOG}/{file.rpartition('/')[2]}")


class NotPlainError(Exception):
    """delta-rs has to read the log: it is damaged, or has more than txstorm writes to a plain table."""


class Protocol(NamedTuple):
    """Protocol of a table; a plain one lists no features."""

    min_reader_version: int
    min_writer_version: int
    reader_features: None = None
    writer_features: None = None


class Metadata(NamedTuple):
    """Metadata of a table, as in its log."""

    id: str
    name: str | None
    description: str | None
    partition_columns: list[str]
    created_time: int | None
    configuration: Mapping[str, str]


class ShortLog:
    """Plain table as its log entries describe it, without a checkpoint. Not thread-safe.

    Its methods are those of `deltalake.DeltaTable` that a handle needs.

    Args:
        table: the table's directory.
        window: its log, from the first entry on.
        columns: parses a schema, as delta-rs does.

    Raises:
        NotPlainError: delta-rs has to read the log.
    """

    def __init__(self, table: Path, window: Window, columns: Callable[[str], Any]) -> None:
        names = [entry.rpartition("/")[2] for entry in window.entries]
        if window.checkpoint >= 0 or len(names) > FEW or names != [entry_name(at) for at in range(len(names))]:
            raise NotPlainError
        self._table, self._columns, self._version = table, columns, -1
        self._metadata: Metadata | None = None
        self._has_protocol = False
        self._apps: dict[str, int] = {}
        self._files: dict[str, Mapping[str, Any]] = {}
        self._read = {entry: self._add(entry) for entry in window.entries}

    @classmethod
    def of(cls, table: Path, window: Window, columns: Callable[[str], Any]) -> ShortLog | None:
        """Read the log in `window`; return None if delta-rs has to read it."""
        try:
            return cls(table, window, columns)
        except NotPlainError:
            return None

    def load_as_version(self, version: int) -> None:
        """Move to a later version; raises `OSError` if an entry is missing, and `NotPlainError`."""
        while self._version < version:
            self._add(f"{LOG}/{entry_name(self._version + 1)}")

    def _add(self, entry: str) -> Actions:
        try:
            actions = entry_actions(f"{self._table}/{entry}")
            if not actions.keys() <= KINDS or any(added.get("deletionVector") for added in actions["add"]):
                raise NotPlainError
            for protocol in actions["protocol"]:
                if (protocol["minReaderVersion"], protocol["minWriterVersion"]) != PLAIN:
                    raise NotPlainError
                self._has_protocol = True
            for table in actions["metaData"]:
                self._describe(table)
            for removed in actions["remove"]:
                self._files.pop(unquote(removed["path"]), None)
            added = {unquote(file["path"]): file for file in actions["add"]}
            before = {path: file for path, file in self._files.items() if path not in added}
            self._files = {**added, **before}  # newest first, as delta-rs lists them
            self._apps.update((txn["appId"], txn["version"]) for txn in actions["txn"])
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as damage:
            raise NotPlainError from damage
        if self._metadata is None or not self._has_protocol:
            raise NotPlainError
        self._version += 1
        return actions

    def _describe(self, table: Mapping[str, Any]) -> None:
        if table["partitionColumns"]:
            raise NotPlainError
        self._schema = self._columns(table["schemaString"])
        named = table.get("name"), table.get("description")
        self._metadata = Metadata(table["id"], *named, [], table.get("createdTime"), table["configuration"])

    def newly_read(self) -> dict[str, Actions]:
        """Return the actions of the entries that were read at the opening, by path, at the first call; then none."""
        read, self._read = self._read, {}
        return read

    def stats(self) -> dict[str, Mapping[str, Any]]:
        """Return the statistics of the files, by path."""
        return {path: parsed(file.get("stats")) for path, file in self._files.items()}

    def version(self) -> int:
        """Return the version."""
        return self._version

    def protocol(self) -> Protocol:
        """Return the protocol."""
        return Protocol(*PLAIN)

    def metadata(self) -> Metadata:
        """Return the metadata."""
        assert self._metadata is not None
        return self._metadata

    def schema(self) -> Any:
        """Return the columns."""
        return self._schema

    def transaction_version(self, app_id: str) -> int | None:
        """Return the last version of an app transaction; None if there is none."""
        return self._apps.get(app_id)

    def get_add_actions(self, flatten: bool = True) -> pa.Table:
        """Return the files, newest first, with size, time and number of rows, but without bounds of columns."""
        files, counts = list(self._files.values()), [stats.get("numRecords") for stats in self.stats().values()]
        columns = ("path", pa.string()), ("size", pa.int64()), ("modificationTime", pa.int64())
        given = [pa.array([file[name] for file in files], kind) for name, kind in columns]
        names = ["path", "size_bytes", "modification_time", "num_records"]
        return pa.table([*given, pa.array(counts, pa.int64())], names)


def _listed(table: Path, folder: str) -> list[str]:
    try:
        return [f"{folder}/{name}" for name in os.listdir(f"{table}/{folder}")]
    except FileNotFoundError:
        return []


def _beginning(table: Path, found: Iterable[str], version: int | None = None) -> tuple[int, Sequence[str]]:
    return newest_complete(table, (path for path in found if ".checkpoint." in path), version)


def _is_simple(table: Path, found: Sequence[str], checkpoint: int) -> bool:
    """Return whether the log is short and regular, so that delta-rs, listing it, reads the same files as a window."""
    names = {path.rpartition("/")[2] for path in found} - {HINT}
    regular = all(_is_entry(name) or _SINGLE.fullmatch(name) for name in names)
    return len(names) <= SHORT and regular and last_checkpoint(table) == max(checkpoint, 0)


def _entries(found: Iterable[str], checkpoint: int, version: int | None = None) -> list[str]:
    """Return the entries from `checkpoint` on, up to `version`, oldest first."""
    first, last = entry_name(max(checkpoint, 0)), "~" if version is None else entry_name(version)
    named = ((path.rpartition("/")[2], path) for path in found)
    return [path for name, path in sorted(pair for pair in named if first <= pair[0] <= last) if _is_entry(name)]


def _is_entry(name: str) -> bool:
    return name.endswith(".json") and (version := version_of(name)) is not None and name == entry_name(version)


class _Place:
    """Directory for all windows of a process; a lock, released when the process ends, marks it as in use."""

    def __init__(self) -> None:
        self.process = 0
        self.path = Path()
        self.lock: IO[bytes] | None = None

    def begin(self) -> None:
        """Create the directory, and delete the directories of processes that were killed."""
        for found in Path(gettempdir()).glob(f"{_PREFIX}*"):
            try:
                with (found / _LOCK).open("rb") as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(found, ignore_errors=True)
            except OSError:  # in use, another user's, or being created
                continue
        self.process, there = os.getpid(), False
        while not there:  # another process may have deleted it before it was locked
            self.path = _new_directory(prefix=_PREFIX)
            self.lock = (self.path / _LOCK).open("wb")
            fcntl.flock(self.lock, fcntl.LOCK_SH)
            there = (self.path / _LOCK).exists()
        weakref.finalize(self.lock, _remove, self.path, self.process)


_PLACE = _Place()


def _place_of_process() -> Path:
    # A process that has dropped its privileges (setuid) can no longer write to the directory it created before.
    if _PLACE.process != os.getpid() or not os.access(_PLACE.path, os.W_OK | os.X_OK, effective_ids=True):
        _PLACE.begin()
    return _PLACE.path


def _new_directory(**how: Any) -> Path:
    try:
        return Path(mkdtemp(**how))
    except OSError as error:
        msg = f"temporary directory {gettempdir()}: {error}; free or mount it, or set TMPDIR to another one"
        raise InputError(msg) from error


def _remove(path: Path, process: int) -> None:
    if os.getpid() == process:  # not in a forked child
        shutil.rmtree(path, ignore_errors=True)
