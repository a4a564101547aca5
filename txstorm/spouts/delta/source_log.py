"""A Delta table as a source: what each version adds and removes, and the files of one version, read without delta-rs.

delta-rs reads a version as a whole, and refuses tables with features that a reader of single files can handle.
Entries that txstorm has moved to the archive of its own tables are found there.
"""

from __future__ import annotations

import json
import os
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from txstorm.clients.delta.log import (
    ARCHIVE,
    LOG,
    SIDECARS,
    check_checkpoint,
    entry_actions,
    entry_name,
    newest_complete,
    sidecars_of,
    version_of,
)
from txstorm.clients.files import MOST, check_file
from txstorm.errors import SpoutError

_TEXT, _NUMBER = pa.string(), pa.int64()
_VECTOR = {"storageType": _TEXT, "pathOrInlineDv": _TEXT, "offset": pa.int32(), "sizeInBytes": pa.int32()}
FILES = pa.schema(
    {
        "path": _TEXT,
        "partitionValues": pa.map_(_TEXT, _TEXT),
        "size": _NUMBER,
        "modificationTime": _NUMBER,
        "deletionVector": pa.struct(list(_VECTOR.items())),
    }
)
"""What a source needs of the ``add`` actions of a version."""
Action = Mapping[str, Any]
_DAMAGED = (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError, pa.ArrowException)


class Shape(NamedTuple):
    """The ``protocol`` and ``metaData`` actions in force at a version."""

    protocol: Action
    table: Action

    @property
    def fields(self) -> list[dict[str, Any]]:
        """The columns, as in the JSON schema of the table."""
        return list(json.loads(self.table["schemaString"])["fields"])

    @property
    def properties(self) -> dict[str, str]:
        """The properties of the table."""
        return dict(self.table.get("configuration") or {})


class Entry(NamedTuple):
    """One version, as its log entry describes it.

    Attributes:
        version: the version.
        at: its time, in milliseconds since 1970.
        info: the commit info.
        protocol, table: the ``protocol`` and ``metaData`` actions, None if it has none.
        adds, removes: the ``add`` and ``remove`` actions that change rows.
        changes: the ``cdc`` actions.
    """

    version: int
    at: int
    info: Action
    protocol: Action | None
    table: Action | None
    adds: Sequence[Action]
    removes: Sequence[Action]
    changes: Sequence[Action]


class SourceLog:
    """The log of one table, followed by probing for the name of the next entry; it is listed only at the start.

    All methods raise `SpoutError` if the log is damaged, or no longer there, naming the version.
    """

    def __init__(self, table: Path) -> None:
        self.path = table
        self._newest = -1

    def fault(self, text: str) -> SpoutError:
        """Return an error about the table."""
        return SpoutError(f"delta spout: table {self.path}: {text}")

    def newest(self) -> int:
        """Return the newest version."""
        if self._newest < 0 or self._file(self._newest) is None:
            self._newest = max(self._versions(), default=-1)
            if self._newest < 0:
                raise self.fault("there is no Delta table; check the path, or write the table first")
        while os.path.exists(f"{self.path}/{LOG}/{entry_name(self._newest + 1)}"):
            self._newest += 1
        return self._newest

    def entry(self, version: int) -> Entry | None:
        """Return an entry; None if the table has no such version yet."""
        file = self._file(version)
        # Entries are removed oldest first: as long as the one before is there, a missing one has never been.
        if file is None and (version == 0 or self._file(version - 1) is None):
            if version > self.newest() + 1:
                raise self.fault(f"has no version {version - 1}, its newest is {self.newest()}: was it replaced?")
            if version <= self.newest() and (file := self._file(version)) is None:
                first = min(self._versions())
                raise self.fault(f"version {version} is no longer in its log, which begins at version {first}")
        if file is None:
            return None
        with self._reading(f"the log entry of version {version}"):
            actions, written = self._read(file)
            info: Action = next(iter(actions["commitInfo"]), {})
            at = info.get("inCommitTimestamp")
            return Entry(
                version,
                written // 1_000_000 if at is None else int(at),
                info,
                next(iter(actions["protocol"]), None),
                next(iter(actions["metaData"]), None),
                [one for one in actions["add"] if one["dataChange"]],
                [one for one in actions["remove"] if one["dataChange"]],
                actions["cdc"],
            )

    def mark(self, version: int) -> tuple[int, int] | None:
        """Return what tells the entry of a version from that of a table that takes this one's place; None: none is."""
        with suppress(FileNotFoundError):
            if file := self._file(version):
                return (found := file.stat()).st_ino, found.st_mtime_ns
        return None

    def version_at(self, when: datetime) -> int:
        """Return the first version of that time or later; one above the newest if there is none."""
        versions, moment = sorted(self._versions()), int(when.timestamp() * 1000)
        return [*versions, self.newest() + 1][bisect_left(versions, moment, key=lambda one: self._required(one).at)]

    def shape(self, version: int) -> Shape:
        """Return protocol and metadata at `version`."""
        begin, files = self._checkpoint(version)
        protocol: Action | None = None
        table: Action | None = None
        for number in range(version, begin, -1):
            entry = self._required(number)
            protocol, table = protocol or entry.protocol, table or entry.table
            if protocol and table:
                break
        else:
            with self._reading(f"the checkpoint of version {begin}"):
                found = self._in_checkpoint(files)
                protocol, table = protocol or found.get("protocol"), table or found.get("metaData")
        if not protocol or not table:
            raise self.fault(f"its log has no protocol or metadata for version {version}")
        return Shape(protocol, table)

    def files(self, version: int) -> pa.Table:
        """Return the files of `version` with the columns `FILES`, ordered by time and name."""
        begin, files = self._checkpoint(version)
        later: dict[str, Action | None] = {}
        for number in range(version, begin, -1):
            file = self._file(number)
            with self._reading(f"the log entry of version {number}"):
                actions, _ = self._read(file or self.path / LOG / entry_name(number))
                for one in actions["add"]:
                    later.setdefault(_key(one), one)
                for one in actions["remove"]:
                    later.setdefault(_key(one), None)
        with self._reading(f"the checkpoint of version {begin}"):
            found = pa.concat_tables([FILES.empty_table(), *self._files_in(files)])
            if later:
                found = found.filter(pc.invert(pc.is_in(_keys(found), pa.array(later, _TEXT))))
            added = _table([one for one in later.values() if one is not None])
            order = [(name, "ascending") for name in ("modificationTime", "path")]
            return pa.concat_tables([found, added]).sort_by(order)

    def _required(self, version: int) -> Entry:
        entry = self.entry(version)
        if entry is None:
            raise self.fault(f"version {version} is missing in its log")
        return entry

    def _file(self, version: int) -> Path | None:
        """Return the file of an entry, in the log or the archive."""
        name = entry_name(version)
        paths = (self.path / folder / name for folder in (LOG, ARCHIVE))
        return next((path for path in paths if path.exists()), None)

    def _versions(self) -> set[int]:
        names = [name for folder in (LOG, ARCHIVE) for name in self._listed(folder)]
        return {found for name in names if (found := version_of(name)) is not None and name == entry_name(found)}

    def _listed(self, folder: str) -> list[str]:
        with suppress(FileNotFoundError, NotADirectoryError):
            return os.listdir(self.path / folder)
        return []

    def _checkpoint(self, version: int) -> tuple[int, Sequence[str]]:
        """Return version and files of the newest checkpoint up to `version`; -1 if all entries are there."""
        for folder in (LOG, ARCHIVE):
            names = [f"{folder}/{name}" for name in self._listed(folder) if ".checkpoint." in name]
            begin, files = newest_complete(self.path, names, version)
            if begin >= 0:
                with self._reading(f"the checkpoint of version {begin}"):
                    if folder == LOG:
                        check_checkpoint(self.path, begin)
                    return begin, files
        if self._file(0) is None:
            first = min(self._versions(), default=version)
            raise self.fault(f"version {version} can no longer be read: its log begins at version {first}")
        return -1, ()

    def _in_checkpoint(self, files: Sequence[str]) -> dict[str, Action]:
        """Return protocol and metadata of a checkpoint, by kind of action."""
        found: dict[str, Action] = {}
        for path in (self.path / file for file in files):
            if path.suffix == ".json":
                actions = self._actions(path)
                found.update({kind: actions[kind][0] for kind in ("protocol", "metaData") if actions[kind]})
                continue
            check_file(path, most=MOST)
            for kind in {"protocol", "metaData"} & set(pq.read_schema(path).names):
                for action in pq.ParquetFile(path).read([kind])[kind].drop_null().to_pylist():
                    found[kind] = action
        return found

    def _files_in(self, files: Sequence[str]) -> Iterator[pa.Table]:
        """Yield the files that a checkpoint and its sidecars list."""
        parts = [self.path / file for file in files]
        parts += [self.path / LOG / SIDECARS / name for part in parts for name in sidecars_of(part)]
        for part in parts:
            if part.suffix == ".json":
                yield _table(self._actions(part)["add"])
                continue
            check_file(part, most=MOST)
            schema = pq.read_schema(part)
            if "add" in schema.names:
                given = {one.name for one in schema.field("add").type}
                wanted = [f"add.{name}" for name in FILES.names if name in given]
                adds = pq.ParquetFile(part).read(wanted)["add"].combine_chunks().drop_null()
                yield _chosen(adds, FILES)

    def _read(self, file: Path) -> tuple[dict[str, list[Any]], int]:
        """Return the actions of an entry, and when it was written, also if it is archived since it was found."""
        try:
            return self._actions(file), file.stat().st_mtime_ns
        except FileNotFoundError:
            moved = self.path / ARCHIVE / file.name
            return self._actions(moved), moved.stat().st_mtime_ns

    @staticmethod
    def _actions(file: Path) -> dict[str, list[Any]]:
        check_file(file, most=MOST)
        return entry_actions(file)

    @contextmanager
    def _reading(self, what: str) -> Iterator[None]:
        try:
            yield
        except SpoutError:
            raise
        except _DAMAGED as error:
            raise self.fault(f"{what} cannot be read: {type(error).__name__}: {error}") from None


def _chosen(adds: pa.StructArray, schema: pa.Schema) -> pa.Table:
    """Return the parts of a struct with the columns of `schema`, null where it has none."""
    columns = []
    for field in schema:
        known = adds.type.get_field_index(field.name) >= 0
        column = pc.struct_field(adds, field.name) if known else pa.nulls(len(adds), field.type)
        if pa.types.is_struct(field.type) and known:
            parts = _chosen(column, pa.schema(list(field.type)))
            arrays = [one.combine_chunks() for one in parts.columns]
            column = pa.StructArray.from_arrays(arrays, fields=list(field.type), mask=column.is_null())
        columns.append(column.cast(field.type))
    return pa.Table.from_arrays(columns, schema=schema)


def _table(adds: Sequence[Action]) -> pa.Table:
    rows = [{**one, "partitionValues": list((one.get("partitionValues") or {}).items())} for one in adds]
    return pa.Table.from_pylist([{name: row.get(name) for name in FILES.names} for row in rows], FILES)


def _key(action: Action) -> str:
    """Return the key of a file among those of a table: its path, and its deletion vector."""
    vector = action.get("deletionVector")
    if not vector:
        return f"{action['path']}|"
    offset = vector.get("offset")
    return f"{action['path']}|{vector['storageType']}{vector['pathOrInlineDv']}@{'' if offset is None else offset}"


def _keys(files: pa.Table) -> pa.ChunkedArray:
    vector = files["deletionVector"]
    kind, text, offset = (pc.struct_field(vector, name).cast(_TEXT) for name in list(_VECTOR)[:3])
    named = pc.binary_join_element_wise(kind, text, "@", "")
    named = pc.binary_join_element_wise(named, offset.fill_null(""), "")
    return pc.binary_join_element_wise(files["path"], named.fill_null(""), "|")
