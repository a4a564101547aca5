"""What is told to a Delta table and what it tells: files, commits, entries of its log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import pyarrow as pa

LOG_RETENTION = "delta.logRetentionDuration"
"""The table property that says for how long an entry stays in the log."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file of a table.

    Attributes:
        path: relative to the table.
        size: bytes.
        modified: milliseconds since 1970.
        stats: Delta's statistics of the file, as JSON.
    """

    path: str
    size: int
    modified: int = 0
    stats: str = "{}"


@dataclass(frozen=True, slots=True)
class LogEntry:
    """What one version of a table says about itself.

    Attributes:
        version: the version it made.
        info: what txstorm wrote into its commit info; empty for a commit of somebody else.
    """

    version: int
    info: Mapping[str, Any]


class Commit(NamedTuple):
    """One commit to make.

    Attributes:
        transactions: app id → version, all written with the commit.
        info: goes into the commit info under ``txstorm``.
        adds: files that become part of the table.
        removes: files that leave it.
        removed_at: milliseconds since 1970 that removed files are marked with.
        label: one line for ``DESCRIBE HISTORY`` (its ``userMetadata``).
        data_change: False when the rows stay what they are, in other files.
        properties: table properties that it sets; such a commit has no files.
        columns: (schema, properties) that the table gets instead of its own; of an empty table only.
    """

    transactions: Mapping[str, int]
    info: Mapping[str, Any]
    adds: Sequence[DataFile] = ()
    removes: Sequence[DataFile] = ()
    removed_at: int = 0
    label: str = ""
    data_change: bool = True
    properties: Mapping[str, str] = MappingProxyType({})
    columns: tuple[pa.Schema, Mapping[str, str]] | None = None
