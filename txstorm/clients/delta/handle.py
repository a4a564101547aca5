"""Handle on a Delta table: create, open, read, and commit by compare-and-set. Ledgers use `control_log` instead.

Every commit goes through `DeltaHandle.commit`. For a plain table, it writes the log entry directly (`entry`); for other
tables, it uses delta-rs with ``max_commit_retries=0``, since by default delta-rs retries after a lost race, accepts a
lower app-transaction version, and allows two concurrent compactions to duplicate rows.

It is one module, since one handle encapsulates everything that tables need from `deltalake`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, RemoveAction, Transaction

from txstorm import faults
from txstorm.clients.delta.archive import archived_entries
from txstorm.clients.delta.data_files import (
    BATCH_ROWS,
    BOUNDED,
    Bound,
    Selected,
    Wanted,
    bounds_in,
    parsed,
    stats_of,
    with_bounds,
)
from txstorm.clients.delta.entry import (
    PLAIN,
    Commit,
    DataFile,
    LogEntry,
    NoLinksError,
    commit_info,
    entry_bytes,
    has_inode,
    make_durable,
    milliseconds,
    put_entry,
    put_files,
    put_first_entry,
    table_action,
)
from txstorm.clients.delta.features import COPY, Features, append_only_text, first_line, unsupported_text
from txstorm.clients.delta.log import (
    ARCHIVE,
    LOG,
    apps_in,
    check_checkpoint,
    checked_paths,
    entry_name,
    last_checkpoint,
    note_checkpoint,
    own_entry,
    own_info,
    version_of,
)
from txstorm.clients.delta.window import NotPlainError, ShortLog, Window
from txstorm.clients.delta.writer_lock import locked
from txstorm.clients.files import checked_path
from txstorm.errors import ConflictError, StateError, TableCorrupt, TableRefused

Answer = TypeVar("Answer")
_PLAIN = {"delta.enableDeletionVectors": "false"}
_NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


class DeltaHandle:
    """Handle on one Delta table, at the version last read or written. Not thread-safe.

    delta-rs sees only a window of the log (`window`), and nothing of the short log of a plain table. The whole log is
    listed only by `open` and `reopen`, and by commits to tables that are not plain.

    Attributes:
        path: the table's directory.
        version: the version that this handle is at.
        checkpointed: the version of the last checkpoint; 0 before the first.
    """

    def __init__(self, path: Path, window: Window, table: DeltaTable | ShortLog, first: int | None = None) -> None:
        self.path = path
        self._window = window
        self._table = table  # at `version`, or behind it by commits of this handle
        self._writer: DeltaTable | None = None  # on the log itself, for commits through delta-rs
        self.version = int(table.version())
        self.checkpointed = last_checkpoint(path)
        self._apps: dict[str, int | None] = {}  # cache for `version`: delta-rs reads the log for every call
        self._stats: dict[str, Mapping[str, Any]] | None = None  # of every file; None: not read yet
        self._listed: pa.Table | None = None  # the files of `version`; None: not read yet
        self._links = True  # whether the file system has hard links, as far as is known
        self._synced = -1 if first is None else 0  # the newest version that this handle has written here, and synced
        self._forget()
        self._own = None if first is None else (0, first)  # version and inode of that entry, until it is rewritten

    @classmethod
    def open(cls, path: Path, version: int | None = None, *, once: bool = False) -> DeltaHandle:
        """Open the table at `path`, at its newest version or at `version`.

        `once`: the handle serves a single read and is never refreshed; a short log is then opened without links.

        Raises:
            TableCorrupt: there is no table, or its log cannot be read (or no longer reaches back to `version`).
            TableRefused: it uses an unsupported feature that is required for reading its rows correctly.
        """
        handle = cls(path, *_opened(path, version, once=once))
        handle.check_readable()
        return handle

    @classmethod
    def create(cls, path: Path, schema: pa.Schema, properties: Mapping[str, str], commit: Commit) -> DeltaHandle:
        """Create an empty table (reader 1, writer 2) whose version 0 is `commit`.

        Raises:
            StateError: Delta does not support the type of a column.
            TableCorrupt: a table already exists, or the directory cannot be written.
        """
        columns = Schema.from_arrow(stored_schema(str(path), schema))
        configuration = {**_PLAIN, **properties}
        inode = None
        try:
            with suppress(NoLinksError):
                inode = put_first_entry(path, commit, columns.to_json(), configuration)
            if inode is None:
                DeltaTable.create(
                    str(path),
                    schema=columns,
                    configuration=configuration,
                    commit_properties=_properties(commit, [json.loads(columns.to_json()), configuration]),
                    raise_if_key_not_exists=False,
                )
        except (DeltaError, OSError) as cause:
            raise _corrupt(path, "the table cannot be created", cause) from cause
        return cls(path, *_opened(path, None), inode)

    def opener(self, *, newest: bool = False) -> Callable[[], DeltaHandle]:
        """Return a function to open a handle at this or the newest version, on any thread, without listing the log."""
        with _reading(self.path, "the log"):
            self._window.follow(self.version)
        path, checkpoint, files = self.path, self._window.checkpoint, self._window.files
        entries = tuple(self._window.entries)

        def opened() -> DeltaHandle:
            with _reading(path, "the log"):
                window = Window(path, checkpoint, files, entries)
                if newest:
                    window.follow()
                return DeltaHandle(path, window, _table_in(path, window))

        return opened

    def begin_with(self, later: DeltaHandle) -> None:
        """Read the log from the checkpoint written by another handle, `later`, which must not be used afterwards."""
        self._window, self._table, self.checkpointed = later._window, later._table, later.checkpointed

    @property
    def schema(self) -> pa.Schema:
        """The table's columns, as an Arrow schema."""
        return pa.schema(self._table.schema().to_arrow())

    @property
    def id(self) -> str:
        """The table's id in this version, which a table that replaced it does not have."""
        return str(self._table.metadata().id)

    @property
    def properties(self) -> Mapping[str, str]:
        """The table's properties (``delta.…`` and ``txstorm.…``)."""
        return dict(self._table.metadata().configuration)

    def log_entry(self, version: int) -> Path:
        """Return the path of the log entry that created `version`."""
        return self.path / f"{LOG}/{entry_name(version)}"

    def make_durable(self, versions: range, *, again: bool = False) -> None:
        """Make the entries of consecutive `versions` durable; see `txstorm.clients.delta.entry.make_durable`."""
        unsure = [version for version in versions if again or version != self._synced]
        if self._own and self._own[0] in unsure:
            self._own = None
        make_durable(self.path, map(self.log_entry, unsure), again=again)

    def refresh(self) -> None:
        """Move to the newest version."""
        with _reading(self.path, "the log"):
            followed = self._window.follow()
        if not followed:
            self.reopen()
        elif self._window.last != self.version:  # another writer has committed
            self._read_here(self._window.last)
            self.version = self._window.last
            self._forget()

    def reopen(self) -> None:
        """Reopen the table from its directory after an error; unlike `refresh`, this detects a missing table."""
        self._window, self._table = _opened(self.path, None)
        self._writer = self._own = None
        self.version = int(self._table.version())
        self._forget()

    def _forget(self) -> None:
        """Invalidate everything cached about an earlier version, after another writer has committed a later version."""
        self._apps.clear()
        self._all_apps = False  # whether it has all app ids
        self._stats = self._listed = None
        self._features = Features.of(self._table, partial(_has_vectors, self._table))  # no cycle: it keeps the links
        self._unwritable = self._features.unwritable(self.path)

    @property
    def append_only(self) -> bool:
        """Whether the table forbids removing rows."""
        return self._features.append_only

    def check_readable(self) -> None:
        """Raise `TableRefused` if an unsupported feature of this version makes its rows unreadable."""
        if self._unwritable is not None and (why := self._features.unreadable(self.path)) is not None:
            raise TableRefused(why)

    def check_writable(self) -> None:
        """Raise `TableRefused` if the table, at its newest version, has a feature that txstorm does not support."""
        if self._unwritable is not None:
            self.refresh()  # the feature may have been removed
        if self._unwritable is not None:
            raise TableRefused(self._unwritable)

    def _read_here(self, version: int | None = None) -> DeltaTable | ShortLog:
        """Return the table at exactly `version` (None: that of this handle), even if there are newer versions."""
        wanted = self.version if version is None else version
        if self._table.version() != wanted:
            try:
                with _reading(self.path, "the log"):
                    self._window.follow(wanted)
                    self._table.load_as_version(wanted)
            except NotPlainError:
                self._window, self._table = _opened(self.path, wanted)
        return self._table

    def app_version(self, app_id: str) -> int | None:
        """Return the last version number committed for the Delta app transaction `app_id`; None if there is none."""
        if app_id not in self._apps and not self._all_apps:
            with _reading(self.path, "the log"):
                self._apps[app_id] = self._read_here().transaction_version(app_id)
        return self._apps.get(app_id)

    def checked_infos(self) -> list[Mapping[str, Any]]:
        """Return the commit infos that txstorm has written since the last checkpoint, oldest first.

        Raises:
            TableCorrupt: a checkpoint or entry that was written by txstorm and belongs to this version was altered.
        """
        with _reading(self.path, "the log"):
            self._window.follow(self.version)
            check_checkpoint(self.path, self._window.checkpoint)
            read = self._table.newly_read() if isinstance(self._table, ShortLog) else {}
            entries = self._window.entries
            found = [_undamaged(self.path / one, partial(own_entry, read=read.get(one))) for one in entries]
        self._apps.update(app for _, actions in found for app in apps_in(actions))
        self._all_apps = self._window.checkpoint < 0
        return [info for info, _ in found]

    def commit(self, commit: Commit) -> None:
        """Write the next version and move to it, provided that this handle is at the newest; else change nothing.

        Raises:
            ConflictError: the table is at another version than this handle; call `refresh`.
            TableCorrupt: the commit failed for another reason, but may have taken effect: call `reopen`.
            TableRefused: the table has a feature that txstorm does not support, or is append-only and the commit
                removes rows.
            BlockedError: another process has held the table's lock for too long.
        """
        self.check_writable()
        if self.append_only and commit.removes and commit.data_change:
            raise TableRefused(append_only_text(self.path))
        try:
            with locked(self.path):
                if not self._commit_entry(commit):
                    (self._commit_properties if commit.properties else self._commit_through)(commit)
        except CommitFailedError as lost:
            msg = f"{self.path}: expected version {self.version} to be the newest: {first_line(lost)}"
            raise ConflictError(msg) from lost
        except (DeltaError, OSError) as cause:
            why = f"version {self.version + 1} cannot be committed: {first_line(cause)}"
            raise TableCorrupt(f"{self.path}: {why}; check disk space and permissions, then start again") from cause
        self.version += 1
        self._apps.update(commit.transactions)
        self._listed = None if commit.adds or commit.removes else self._listed
        if commit.properties or commit.columns is not None:
            self._read_here()
        if self._stats is not None:
            self._stats.update((file.path, parsed(file.stats)) for file in commit.adds)
            for file in commit.removes:
                self._stats.pop(file.path, None)

    @property
    def is_plain(self) -> bool:
        """Whether commits to the table bypass delta-rs, so that they do not slow down as the log grows."""
        return self._links and (self._features.reader, self._features.writer) == PLAIN

    def _commit_entry(self, commit: Commit) -> bool:
        """Commit without delta-rs; return False, changing nothing, if the table or the file system do not allow it."""
        if not self.is_plain:
            return False
        if not self.still_has(self.version):
            self.reopen()
            msg = f"{self.path}: expected version {self.version} as it was committed: another writer has replaced it"
            raise ConflictError(msg)
        metadata, columns = None, None
        if commit.columns is not None or commit.properties:
            known, schema = self._read_here().metadata(), self._table.schema()
            properties: Mapping[str, str] = {**known.configuration, **commit.properties}
            if commit.columns is not None:
                wanted, properties = commit.columns
                schema = Schema.from_arrow(stored_schema(str(self.path), wanted))
            metadata = table_action(known, schema.to_json(), properties)
            columns = [json.loads(metadata["schemaString"]), metadata["configuration"]]
        data = entry_bytes(commit, commit_info(commit, columns), milliseconds(), metadata)
        try:
            inode = put_entry(self.log_entry(self.version + 1), self.log_entry(self.version), data)
        except NoLinksError:
            self._links = False
            return False
        if inode is not None:
            self._synced, self._own = self.version + 1, (self.version + 1, inode)
            return True
        raise ConflictError(f"{self.path}: expected version {self.version} to be the newest: there is a later one")

    def still_has(self, version: int) -> bool:
        """Return whether the entry of `version` is still the one that this handle has written; True if unknown."""
        entry = f"{self.path}/{LOG}/{entry_name(version)}"
        return self._own is None or self._own[0] != version or has_inode(entry, self._own[1])

    def _commit_through(self, commit: Commit) -> None:
        if commit.columns is not None:
            msg = f"{self.path}: its features, or its file system, do not let txstorm change its columns: rename it"
            raise StateError(msg)
        change, table = commit.data_change, self._written_to()
        adds = [AddAction(file.path, file.size, {}, file.modified, change, file.stats) for file in commit.adds]
        removes = [RemoveAction(file.path, change, commit.removed_at, file.size, {}) for file in commit.removes]
        table.create_write_transaction(
            [*adds, *removes],
            "append",
            table.schema(),
            commit_properties=_properties(commit),
            post_commithook_properties=_NO_HOOKS,
        )

    def _written_to(self) -> DeltaTable:
        """Return the delta-rs table on the log itself, not on the window; delta-rs lists it with every commit."""
        if self._writer is None:
            self._writer = DeltaTable(str(self.path), version=self.version)
        elif self._writer.version() != self.version:
            self._writer.load_as_version(self.version)
        return self._writer

    def _commit_properties(self, commit: Commit) -> None:
        table = self._written_to()
        made = [json.loads(table.schema().to_json()), {**table.metadata().configuration, **commit.properties}]
        table.alter.set_table_properties(
            dict(commit.properties),
            raise_if_not_exists=False,
            commit_properties=_properties(commit, made),
            post_commithook_properties=_NO_HOOKS,
        )

    def checkpoint(self, every: int) -> list[Path]:
        """Write a durable checkpoint if the last one is at least `every` versions old, and use it; return its files.

        The cost of opening the table, and of commits through delta-rs or Spark, grows with the log entries since the
        last checkpoint.
        """
        if self.version - self.checkpointed < every:
            return []
        version, log = self.version, self.path / LOG
        table = self._read_here()
        if not self._window.linked or isinstance(table, ShortLog):  # delta-rs must not write into the log itself
            self._window = Window.until(self.path, version)
            with _reading(self.path, "the log"):
                self._table = table = DeltaTable(str(self._window.path), version=version)
        faults.point("checkpoint.before")
        try:
            table.create_checkpoint()
            made = self._window.made()
            # Write the checkpoint's files first, and the hint that points to them last.
            put_files({log / file.name: file.read_bytes() for file in made})
        except (DeltaError, OSError) as cause:
            raise _corrupt(self.path, "no checkpoint can be written", cause) from cause
        faults.point("checkpoint.after")
        names = [file.name for file in made if version_of(file.name) == version]
        note = note_checkpoint(self.path, version, names)
        entry = f"{LOG}/{entry_name(version)}"
        self._window = Window(self.path, version, [f"{LOG}/{name}" for name in names], [entry])
        self._table = DeltaTable(str(self._window.path))
        self.checkpointed = version
        return [*(log / file.name for file in made), note]

    def history(self, newest: int | None = None) -> Iterator[LogEntry]:
        """Yield the versions in log and archive, newest first, starting with `newest` (None: the current version).

        Raises:
            TableCorrupt: an entry is damaged.
        """
        version = self.version if newest is None else min(newest, self.version)
        while (info := self._logged(version)) is not None:
            yield LogEntry(version, info)
            version -= 1
        for entry in archived_entries(self.path):  # the archive has gaps: versions that no savepoint needs
            if (older := version_of(entry.name)) is not None and older <= version:
                yield LogEntry(older, _undamaged(entry, own_info))

    def info(self, version: int) -> Mapping[str, Any]:
        """Return the commit info that txstorm has written for `version`; empty if it is no longer kept."""
        return self._logged(version) or {}

    def _logged(self, version: int) -> Mapping[str, Any] | None:
        # The archived entry takes precedence over anything that a stale writer has put into the log since.
        return self._kept(entry_name(version), own_info, ARCHIVE, LOG)

    def _kept(self, name: str, read: Callable[[Path], Answer], first: str, then: str) -> Answer | None:
        """Read an entry in one of two directories; None if it is in neither. It may be moved between two look-ups."""
        for folder in (first, then, first):
            try:
                return _undamaged(self.path / folder / name, read)
            except FileNotFoundError:
                continue
        return None

    def files(self) -> list[DataFile]:
        """Return the data files of this version, in the order of `actions`."""
        with _reading(self.path, "the list of files"):
            rows = self.actions().select(["path", "size_bytes"]).to_pylist()
            return [DataFile(checked_path(unquote(row["path"])), row["size_bytes"]) for row in rows]

    def logged_paths(self) -> set[str]:
        """Return the relative paths of all data files that any kept version references."""
        named = {path for name in self.entry_names() for path in self.paths_of_entry(name)}
        return named | {file.path for file in self.files()}

    def entry_names(self) -> list[str]:
        """List the names of all entries of log and archive, oldest first."""
        names = {file.name for folder in (LOG, ARCHIVE) for file in (self.path / folder).glob("*.json")}
        return sorted(name for name in names if name == entry_name(version_of(name) or 0))

    def paths_of_entry(self, name: str) -> list[str]:
        """Return the paths of the files that an entry adds or removes; raise `TableCorrupt` if the entry is damaged."""
        return self._kept(name, lambda entry: list(checked_paths(entry)), LOG, ARCHIVE) or []

    def read(
        self,
        columns: Sequence[str] | None = None,
        low: Bound | None = None,
        high: Bound | None = None,
        paths: Collection[str] | None = None,
        within: tuple[str, int, int] | None = None,
        *,
        threads: bool = True,
    ) -> pa.Table:
        """Return the selected rows of this version, in no particular order; the arguments are those of `Wanted`.

        Files that contain no such rows, according to their statistics, are not opened. Raises `TableCorrupt` if a file
        is missing or damaged.
        """
        selected = self._selected(Wanted(columns, low, high, within, paths, threads))
        with _reading(self.path, f"a file of version {self.version}"):
            return selected.table()

    def batches(
        self,
        low: Bound | None = None,
        high: Bound | None = None,
        columns: Sequence[str] | None = None,
        within: tuple[str, int, int] | None = None,
        rows: int = BATCH_ROWS,
    ) -> Iterator[pa.Table]:
        """Yield the rows of `read` in batches of at most `rows`; with `low`, in the order of its column."""
        selected = self._selected(Wanted(columns, low, high, within))
        with _reading(self.path, f"a file of version {self.version}"):
            yield from selected.batches(rows)

    def row_count(self, low: Bound | None = None) -> int:
        """Return the number of rows in the files that `read` would open; a file without statistics counts as 0."""
        return self._selected(Wanted(low=low)).row_count()

    def _selected(self, wanted: Wanted) -> Selected:
        self.check_readable()
        bounded = [bound[0] for bound in (wanted.low, wanted.high) if bound is not None]
        return Selected(self.path, self.schema, self.actions(*bounded), wanted)

    def actions(self, *bounded: str) -> pa.Table:
        """Return the data files of this version from the log, one per row: ``path``, ``size_bytes``, ``num_records``.

        There are also ``min.…`` and ``max.…`` for those of the columns `bounded` for which txstorm writes statistics.
        """
        if self._listed is None:
            with _reading(self.path, "the list of files"):
                self._listed = pa.table(self._read_here().get_add_actions(flatten=True))
        actions = self._listed
        for column in BOUNDED.intersection(bounded):
            if f"min.{column}" not in actions.column_names:
                known = ((path, bounds_in(stats, column)) for path, stats in self._stats_here().items())
                actions = with_bounds(actions, column, {path: ends for path, ends in known if ends is not None})
        return actions

    def _stats_here(self) -> dict[str, Mapping[str, Any]]:
        if self._stats is None:
            table = self._read_here()
            log = self._window.files, self._window.entries
            self._stats = table.stats() if isinstance(table, ShortLog) else stats_of(self.path, *log)
        return self._stats

    def is_silent(self, column: str) -> bool:
        """Return whether any file has bounds of other columns only, so that deltalake wrongly skips it in a filter."""
        found = (self._stats_here().get(file.path, {}) for file in self.files())
        return any(stats.get("minValues") and bounds_in(stats, column) is None for stats in found)


def _table_in(path: Path, window: Window, version: int | None = None) -> DeltaTable | ShortLog:
    short = ShortLog.of(path, window, Schema.from_json) if version in (None, window.last) else None
    return DeltaTable(str(window.path), version=version) if short is None else short


def _opened(path: Path, version: int | None, *, once: bool = False) -> tuple[Window, DeltaTable | ShortLog]:
    try:
        window = Window.newest(path, once=once) if version is None else Window.until(path, version)
        if window.last < 0:
            msg = f"{path}: expected a Delta table, found none; restore the directory, or name the right data directory"
            raise TableCorrupt(msg)
        if not window.linked:
            with suppress(DeltaError, OSError):  # what delta-rs minds may be outside the window
                return window, _table_in(path, window, window.last)
            window = Window.newest(path)
        return window, _table_in(path, window, version)
    except (DeltaError, OSError, ValueError) as cause:
        wanted = "" if version is None else f" at version {version}"
        raise _corrupt(path, f"the log cannot be read{wanted}", cause) from cause


@contextmanager
def _reading(path: Path, what: str) -> Iterator[None]:
    try:
        yield
    except (DeltaError, OSError, ValueError, pa.ArrowException) as cause:
        raise _corrupt(path, f"{what} cannot be read", cause) from cause


def _has_vectors(table: Any) -> bool:
    try:
        return any(batch.num_rows for batch in table.deletion_vectors())
    except DeltaError:  # vectors stored in separate files cannot be read through the window
        return True


def stored_schema(table: str, schema: pa.Schema) -> pa.Schema:
    """Return `schema` as Delta stores it; raise `StateError` for a column whose type Delta does not support."""
    try:
        return _stored(schema.serialize().to_pybytes())
    except Exception as cause:
        for column in schema if len(schema) > 1 else ():
            stored_schema(table, pa.schema([column]))  # names the column
        column = schema.field(0)
        msg = f"{table}: column {column.name!r}: Delta cannot store {column.type}: {first_line(cause)}"
        raise StateError(msg) from cause


@lru_cache(1024)
def _stored(schema: bytes) -> pa.Schema:
    """Return a serialized schema as Delta stores it; starts ask for each declared table several times."""
    return pa.schema(Schema.from_arrow(pa.ipc.read_schema(pa.py_buffer(schema))).to_arrow())


def _properties(commit: Commit, columns: list[Any] | None = None) -> CommitProperties:
    return CommitProperties(
        custom_metadata=commit_info(commit, columns),
        max_commit_retries=0,
        app_transactions=[Transaction(app, version) for app, version in commit.transactions.items()],
    )


def _undamaged(entry: Path, read: Callable[[Path], Answer]) -> Answer:
    try:
        return read(entry)
    except FileNotFoundError:
        raise
    except (ValueError, OSError) as cause:
        raise _corrupt(entry.parent.parent, f"entry {entry.name} of the log is damaged", cause) from cause


def _corrupt(path: Path, what: str, cause: BaseException) -> TableCorrupt:
    if (refused := unsupported_text(path, str(cause))) is not None:
        return TableRefused(refused)
    return TableCorrupt(f"{path}: {what}: {first_line(cause)}; {COPY}")
