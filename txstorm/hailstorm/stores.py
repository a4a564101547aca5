"""Stores of snapshots: per bolt, instance and clock a saved state; in memory, in a directory, in a database.

It is one module, as the three stores share their rules: which states are replaced, and which are passed over.
"""

from __future__ import annotations

import json
import logging
import re
import uuid
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs
from typing_extensions import override

from txstorm import faults
from txstorm.clients.files import make_directories, sync_names, write_synced
from txstorm.clocks import Clock
from txstorm.errors import InputError, MissingDependency
from txstorm.hailstorm.entries import entries_of, entries_text, state_of
from txstorm.masks import masked_url

log = logging.getLogger(__name__)
VERSION = 1
"""Version of the format of files and rows."""
KEEP = 2


class SnapshotStore:
    """Store of snapshots; the base class of your own, which override `save`, `restore` and `clocks`.

    What it gives back must be what was saved, however long ago and by whichever process. Errors that are no
    `TxstormError` are logged by a run that saves, and end a start that restores.

    Attributes:
        keep: number of states that are kept per bolt and instance.
        name: what messages call it.
    """

    keep: int = KEEP
    name: str = "the store of snapshots"

    def save(self, bolt: str, instance: int, state: Any, clock: Clock) -> None:
        """Save the state of an instance at a clock; it replaces the oldest one beyond `keep`, and one of this clock.

        Args:
            bolt: id of the bolt.
            instance: index of its task.
            state: any JSON value.
            clock: what it holds.
        """
        raise NotImplementedError

    def restore(self, bolt: str, instance: int, clock: Clock | None = None) -> tuple[Any, Clock] | None:
        """Return the state at a clock (None: the one saved last), with its clock; None if there is none."""
        raise NotImplementedError

    def clocks(self, bolt: str, instance: int) -> list[Clock]:
        """Return the clocks of the states that are there, the one saved last first."""
        raise NotImplementedError

    def bind(self, topology: str) -> None:
        """Use the store for the topology with this id from now on; raise `InputError` if it is another one's."""

    def forget(self, bolt: str, instance: int, clock: Clock) -> None:
        """Remove a state of an incomplete snapshot, so that no save of a later one replaces a complete one for it.

        A store without it keeps a complete snapshot as long as no two saves in a row are cut short.
        """

    def save_entries(self, bolt: str, instance: int, entries: pa.Table, clock: Clock) -> None:
        """Save a state that is given as `txstorm.hailstorm.entries`; override it to do without Python objects."""
        self.save(bolt, instance, state_of(entries), clock)

    def restore_entries(self, bolt: str, instance: int, clock: Clock) -> pa.Table | None:
        """Return the state at a clock as `txstorm.hailstorm.entries`; None if there is none."""
        found = self.restore(bolt, instance, clock)
        return None if found is None else entries_of(found[0])

    def close(self) -> None:
        """Release what it has opened."""

    def __repr__(self) -> str:
        return f"<snapshot store {self.name}>"


class SavedState(NamedTuple):
    """A state that is there.

    Attributes:
        number: orders the states of an instance by when they were saved.
        clock: its clock.
        place: where the store has it.
    """

    number: int
    clock: Clock
    place: Any


class _Damaged(Exception):
    """Error for a saved state that is not as it was written."""


class _EntryStore(SnapshotStore):
    """Base class of the stores that are there: all of them keep entries.

    Args:
        name: what messages call it.
        keep: number of states that are kept per bolt and instance.
    """

    def __init__(self, name: str, keep: int = KEEP) -> None:
        if type(keep) is not int or keep < 1:
            raise InputError(f"{name}: keep: expected an int of at least 1, got {keep!r}")
        self.name, self.keep = name, keep
        self.topology = ""

    @override
    def bind(self, topology: str) -> None:
        self.topology = topology
        with self._naming("open it"):
            self._check_all()

    @override
    def save(self, bolt: str, instance: int, state: Any, clock: Clock) -> None:
        self.save_entries(bolt, instance, entries_of(state), clock)

    @override
    def save_entries(self, bolt: str, instance: int, entries: pa.Table, clock: Clock) -> None:
        with self._naming("save", bolt, instance):
            found = self._saved(bolt, instance)
            others = [one for one in found if one.clock != clock]
            gone = [one for one in found if one.clock == clock] + others[self.keep - 1 :]
            self._replace(bolt, instance, clock, entries, gone)

    @override
    def restore(self, bolt: str, instance: int, clock: Clock | None = None) -> tuple[Any, Clock] | None:
        with self._naming("restore", bolt, instance):
            for saved, entries in self._loaded(bolt, instance, clock):
                return state_of(entries), saved.clock
        return None

    @override
    def restore_entries(self, bolt: str, instance: int, clock: Clock) -> pa.Table | None:
        with self._naming("restore", bolt, instance):
            return next((entries for _, entries in self._loaded(bolt, instance, clock)), None)

    @override
    def clocks(self, bolt: str, instance: int) -> list[Clock]:
        with self._naming("list the clocks", bolt, instance):
            return [one.clock for one in self._saved(bolt, instance)]

    @override
    def forget(self, bolt: str, instance: int, clock: Clock) -> None:
        with self._naming("forget a state", bolt, instance):
            self._remove(bolt, instance, [one for one in self._saved(bolt, instance) if one.clock == clock])

    def _loaded(self, bolt: str, instance: int, clock: Clock | None) -> Iterator[tuple[SavedState, pa.Table]]:
        for saved in self._saved(bolt, instance):
            if clock is None or saved.clock == clock:
                try:
                    yield saved, self._load(bolt, instance, saved)
                except _Damaged as error:
                    log.warning("%s: %s[%s] at %s is passed over: %s", self.name, bolt, instance, saved.clock, error)

    @contextmanager
    def _naming(self, what: str, bolt: str | None = None, instance: int = 0) -> Iterator[None]:
        """Turn errors of the system beneath into an `InputError` that names the store, the bolt and the instance."""
        where = "" if bolt is None else f" of instance {instance} of bolt {bolt!r}"
        try:
            yield
        except (OSError, pa.ArrowException) as error:
            raise InputError(f"snapshot store {self.name}: cannot {what}{where}: {error}") from error

    def _check_owner(self, topology: str, version: int) -> None:
        """Raise `InputError` for what a newer version, or another topology, has saved."""
        if version > VERSION:
            msg = f"snapshot store {self.name}: has format {version}, this txstorm reads {VERSION}; use a newer one"
            raise InputError(msg)
        if self.topology and topology and topology != self.topology:
            raise InputError(
                f"snapshot store {self.name}: belongs to topology {topology!r}, not to {self.topology!r}; give each "
                "topology a store of its own"
            )

    @abstractmethod
    def _check_all(self) -> None:
        """Check the owner of everything that is there."""

    @abstractmethod
    def _saved(self, bolt: str, instance: int) -> list[SavedState]:
        """Return what is there of an instance, the one saved last first."""

    @abstractmethod
    def _load(self, bolt: str, instance: int, saved: SavedState) -> pa.Table:
        """Return the entries of a state; raise `_Damaged` if they are not as they were saved."""

    @abstractmethod
    def _replace(self, bolt: str, instance: int, clock: Clock, entries: pa.Table, gone: Sequence[SavedState]) -> None:
        """Save a state, and then, or at once, remove those of `gone`; if that fails, all of them are still there."""

    @abstractmethod
    def _remove(self, bolt: str, instance: int, gone: Sequence[SavedState]) -> None:
        """Remove some states."""


class MemoryStore(_EntryStore):
    """Store in the memory of this process: stores of one name share what they have.

    Args:
        name: its name.
        keep: number of states that are kept per bolt and instance.
    """

    _shared: dict[str, dict[tuple[str, int], list[tuple[SavedState, str]]]] = {}

    def __init__(self, name: str = "", keep: int = KEEP) -> None:
        super().__init__(f"memory:{name}", keep)
        self._states = self._shared.setdefault(name, {})

    @override
    def _check_all(self) -> None:
        for found in list(self._states.values()):
            for _, topology in found:
                self._check_owner(topology, VERSION)

    @override
    def _saved(self, bolt: str, instance: int) -> list[SavedState]:
        return [saved for saved, _ in self._states.get((bolt, instance), ())]

    @override
    def _load(self, bolt: str, instance: int, saved: SavedState) -> pa.Table:
        return saved.place

    @override
    def _replace(self, bolt: str, instance: int, clock: Clock, entries: pa.Table, gone: Sequence[SavedState]) -> None:
        found = self._states.get((bolt, instance), [])
        saved = SavedState(1 + max((one.number for one, _ in found), default=0), clock, entries)
        self._states[bolt, instance] = [(saved, self.topology), *(one for one in found if one[0] not in gone)]

    @override
    def _remove(self, bolt: str, instance: int, gone: Sequence[SavedState]) -> None:
        found = self._states.get((bolt, instance), [])
        self._states[bolt, instance] = [one for one in found if one[0] not in gone]


_FILE = re.compile(r"([0-9]{8,18})-([0-9a-f]{32})\.parquet")
_ABOUT = b"txstorm.snapshot"


class DirectoryStore(_EntryStore):
    """Store in a directory of any file system of Arrow: ``BOLT/INSTANCE/NUMBER-DIGEST.parquet``.

    A file is written under another name, synced and renamed; its name has the digest of its bytes. What is not
    complete, or not as it was written, is passed over, with a warning that names it.

    Args:
        place: a path, or a URI that Arrow knows, such as ``s3://bucket/path``.
        keep: number of states that are kept per bolt and instance.
        filesystem: the file system that `place` is a path of; None: that of the URI, or the local one.
    """

    def __init__(self, place: str | Path, keep: int = KEEP, filesystem: fs.FileSystem | None = None) -> None:
        super().__init__(f"dir:{masked_url(str(place)) if '://' in str(place) else place}", keep)
        if filesystem is not None:
            self._fs, self._root = filesystem, str(place).rstrip("/")
        else:
            self._fs, self._root = _file_system(self.name, str(place))
        self._local = isinstance(self._fs, fs.LocalFileSystem)
        self._known: dict[str, SavedState] = {}
        self._named: set[str] = set()

    @override
    def _check_all(self) -> None:
        selector = fs.FileSelector(self._root, allow_not_found=True, recursive=True)
        for info in self._fs.get_file_info(selector):
            if info.type == fs.FileType.File and _FILE.fullmatch(info.base_name):
                self._seen(info.path)

    @override
    def _saved(self, bolt: str, instance: int) -> list[SavedState]:
        found = (self._seen(path) for path in self._files(bolt, instance))
        return sorted((one for one in found if one is not None), key=lambda one: one.number, reverse=True)

    def _files(self, bolt: str, instance: int) -> list[str]:
        selector = fs.FileSelector(self._folder(bolt, instance), allow_not_found=True)
        return [info.path for info in self._fs.get_file_info(selector) if info.type == fs.FileType.File]

    def _folder(self, bolt: str, instance: int) -> str:
        return f"{self._root}/{quote(bolt, safe='').replace('.', '%2E')}/{instance}"

    def _seen(self, path: str) -> SavedState | None:
        """Return what a file has; None, after a warning, if it is a leftover, or damaged."""
        if path in self._known:
            return self._known[path]
        try:
            about = json.loads((self._read(path).schema.metadata or {})[_ABOUT])
            self._check_owner("", about["format"])
            saved, topology = SavedState(_number(path), Clock(about["clock"]), path), about["topology"]
        except _Damaged as error:
            if path not in self._named:
                self._named.add(path)
                log.warning("%s: %s is passed over: %s", self.name, path, error)
            return None
        except (KeyError, ValueError, TypeError) as error:
            msg = f"{path} is no snapshot of txstorm ({error!r}); remove it"
            raise InputError(f"snapshot store {self.name}: {msg}") from error
        self._check_owner(topology, VERSION)
        self._known[path] = saved
        return saved

    def _read(self, path: str) -> pa.Table:
        """Read a file; raise `_Damaged` unless it is as it was written."""
        name = _FILE.fullmatch(path.rpartition("/")[2])
        if name is None:
            raise _Damaged("it is left over from a save that was cut short, or not a snapshot")
        try:
            with self._fs.open_input_stream(path, compression=None) as file:
                data = file.read()
        except FileNotFoundError as error:
            raise _Damaged("it has been removed") from error
        if _digest(data) != name[2]:
            raise _Damaged("its bytes are not those that were written")
        return pq.read_table(pa.BufferReader(data))

    @override
    def _load(self, bolt: str, instance: int, saved: SavedState) -> pa.Table:
        return self._read(saved.place).replace_schema_metadata(None)

    @override
    def _replace(self, bolt: str, instance: int, clock: Clock, entries: pa.Table, gone: Sequence[SavedState]) -> None:
        folder = self._folder(bolt, instance)
        number = 1 + max((_number(path) for path in self._files(bolt, instance)), default=0)
        about = {"format": VERSION, "topology": self.topology, "bolt": bolt, "instance": instance, "clock": dict(clock)}
        data = _parquet(entries.replace_schema_metadata({_ABOUT: json.dumps(about)}))
        path = f"{folder}/{number:08d}-{_digest(data)}.parquet"
        written = f"{path}.{uuid.uuid4().hex}.tmp"
        self._make(folder)
        try:
            self._write(written, data)
            self._rename(written, path)
        except BaseException:
            with suppress(OSError):
                self._fs.delete_file(written)
            raise
        self._known[path] = SavedState(number, clock, path)
        self._remove(bolt, instance, gone)

    def _make(self, folder: str) -> None:
        if self._local:
            make_directories(Path(folder))
        else:
            self._fs.create_dir(folder, recursive=True)

    def _write(self, path: str, data: pa.Buffer) -> None:
        if self._local:
            write_synced(Path(path), memoryview(data))
            return
        with self._fs.open_output_stream(path, compression=None) as file:
            file.write(data)

    def _rename(self, written: str, path: str) -> None:
        self._fs.move(written, path)
        faults.point("snapshot.renamed")
        if self._local:
            sync_names(Path(path).parent, [Path(path)])

    @override
    def _remove(self, bolt: str, instance: int, gone: Sequence[SavedState]) -> None:
        for one in gone:
            self._known.pop(one.place, None)
            with suppress(FileNotFoundError):
                self._fs.delete_file(one.place)


class SqlStore(_EntryStore):
    """Store in a database, in the tables ``txstorm_snapshots`` and ``txstorm_snapshots_parts``.

    Args:
        url: a database URL of SQLAlchemy.
        keep: number of states that are kept per bolt and instance.
    """

    def __init__(self, url: str, keep: int = KEEP) -> None:
        super().__init__(f"sql:{masked_url(url)}", keep)
        from txstorm.clients.sql import SnapshotTables

        self._tables = SnapshotTables(url)

    @override
    def _check_all(self) -> None:
        for topology, version in self._tables.owners():
            self._check_owner(topology, version)

    @override
    def _saved(self, bolt: str, instance: int) -> list[SavedState]:
        found = self._tables.rows(bolt, instance)
        for row in found:
            self._check_owner(row.topology, row.version)
        return [SavedState(row.number, Clock.parse(row.clock), None) for row in found]

    @override
    def _load(self, bolt: str, instance: int, saved: SavedState) -> pa.Table:
        try:
            return entries_of(json.loads(self._tables.text(bolt, instance, saved.number)))
        except ValueError as error:
            raise _Damaged(f"its text is no JSON: {error}") from error

    @override
    def _replace(self, bolt: str, instance: int, clock: Clock, entries: pa.Table, gone: Sequence[SavedState]) -> None:
        from txstorm.clients.sql import SnapshotRow

        number = 1 + max((one.number for one in self._saved(bolt, instance)), default=0)
        row = SnapshotRow(number, str(clock), self.topology, VERSION)
        self._tables.put(bolt, instance, row, entries_text(entries), [one.number for one in gone])

    @override
    def _remove(self, bolt: str, instance: int, gone: Sequence[SavedState]) -> None:
        self._tables.remove(bolt, instance, [one.number for one in gone])

    @override
    def close(self) -> None:
        self._tables.dispose()


_KINDS: dict[str, Callable[[str, int], SnapshotStore]] = {
    "memory": MemoryStore,
    "dir": DirectoryStore,
    "sql": SqlStore,
}


def open_store(spec: str | SnapshotStore, keep: int = KEEP) -> SnapshotStore:
    """Open a store of snapshots.

    Args:
        spec: ``memory:NAME`` (in this process), ``dir:PATH`` or ``dir:URI`` (any file system that Arrow knows), or
            ``sql:URL`` (any database that SQLAlchemy knows); a store is returned as it is.
        keep: number of states that are kept per bolt and instance.

    Raises:
        InputError: `spec` is none of these, or cannot be opened.
        MissingDependency: SQLAlchemy, or the driver of the database, is not installed.
    """
    if isinstance(spec, SnapshotStore):
        return spec
    kind, colon, place = spec.partition(":") if isinstance(spec, str) else ("", "", "")
    if not colon or kind not in _KINDS or (not place and kind != "memory"):
        shown = masked_url(spec) if isinstance(spec, str) else repr(spec)
        raise InputError(f"store of snapshots: expected memory:, dir:PATH, dir:URI or sql:URL, got {shown!r}")
    return _KINDS[kind](place, keep)


def _file_system(name: str, place: str) -> tuple[fs.FileSystem, str]:
    if "://" not in place:
        return fs.LocalFileSystem(), str(Path(place).expanduser().absolute())
    try:
        found, path = fs.FileSystem.from_uri(place)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InputError(f"snapshot store {name}: {error}") from error
    except ImportError as error:
        raise MissingDependency(str(error.name), "arrow") from error
    return found, path.rstrip("/")


def _number(path: str) -> int:
    name = _FILE.match(path.rpartition("/")[2])
    return int(name[1]) if name else 0


def _digest(data: Any) -> str:
    return blake2b(data, digest_size=16).hexdigest()


def _parquet(table: pa.Table) -> pa.Buffer:
    out = pa.BufferOutputStream()
    pq.write_table(table, out, compression="zstd", use_dictionary=False)  # keys are distinct
    return out.getvalue()
