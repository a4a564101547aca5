"""External Delta tables: tables of other writers, read at one version, partition columns included."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from txstorm.clients.delta.data_files import Selected, Wanted
from txstorm.clients.delta.handle import DeltaHandle
from txstorm.errors import StateError, TableCorrupt, TableRefused

_PARTITION = "partition."
_REMEDY = "; restore"
"""Beginning of the remedy in messages about tables of a data directory."""


class ExternalTable:
    """An external table at one version.

    Attributes:
        id: the table's id, which a table that replaced it does not have.
        version: the version.
        schema: its columns.

    Raises:
        StateError: there is no table, it does not have that version, or it uses an unsupported feature.
    """

    def __init__(self, path: Path, version: int | None = None) -> None:
        self._path = path
        try:
            self._handle = DeltaHandle.open(path, version, once=True)
            self.id, self.version, self.schema = self._handle.id, self._handle.version, self._handle.schema
        except TableCorrupt as cause:
            if version is None or isinstance(cause, TableRefused):
                raise _unreadable(cause) from cause
            msg = f"{path}: its log no longer has version {version}; the newest one is {ExternalTable(path).version}"
            raise StateError(msg) from cause
        if version is not None and self.version != version:
            raise StateError(f"{path}: there is no version {version}; the newest one before it is {self.version}")

    def read(self, columns: Sequence[str]) -> pa.Table:
        """Return `columns` of all rows, in the same order at every call and in every process.

        Raises:
            StateError: a data file is missing, as after a vacuum, or damaged.
        """
        schema = pa.schema([self.schema.field(name) for name in columns])
        try:
            actions = self._handle.actions().sort_by("path")
            parted = [name for name in actions.column_names if name.startswith(_PARTITION)]
            wanted = [name for name in columns if f"{_PARTITION}{name}" not in parted]
            tables = []
            for values, files in _by_partition(actions, parted):
                rows = Selected(self._path, self.schema, files, Wanted(columns=wanted)).table()
                made = [
                    _constant(values[name], schema.field(name).type, rows.num_rows)
                    if name in values
                    else rows.column(name)
                    for name in columns
                ]
                tables.append(pa.Table.from_arrays(made, schema=schema))
        except TableCorrupt as cause:
            raise _unreadable(cause) from cause
        except (OSError, ValueError, pa.ArrowException) as cause:
            raise StateError(f"{self._path}: a data file of version {self.version} cannot be read: {cause}") from cause
        return pa.concat_tables(tables) if tables else schema.empty_table()


def _by_partition(actions: pa.Table, parted: Sequence[str]) -> list[tuple[dict[str, Any], pa.Table]]:
    """Return the files of each partition, with its values, in the order of their first files."""
    if not parted:
        return [({}, actions)] if actions.num_rows else []
    found: dict[tuple[Any, ...], list[int]] = {}
    for number, values in enumerate(zip(*(actions[name].to_pylist() for name in parted), strict=True)):
        found.setdefault(values, []).append(number)
    names = [name.removeprefix(_PARTITION) for name in parted]
    return [
        (dict(zip(names, values, strict=True)), actions.take(pa.array(numbers))) for values, numbers in found.items()
    ]


def _constant(value: Any, kind: pa.DataType, number: int) -> pa.Array:
    return pa.nulls(number, kind) if value is None else pa.repeat(pa.scalar(value, kind), number)


def _unreadable(cause: TableCorrupt) -> StateError:
    text = str(cause)
    return StateError(text if isinstance(cause, TableRefused) else text.partition(_REMEDY)[0])
