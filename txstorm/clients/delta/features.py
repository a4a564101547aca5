"""Features of Delta tables: those that txstorm supports, and remedies for the others.

The protocol of a Delta table names the features that readers and writers must implement. Any user of Spark can add a
feature, and a writer that does not implement it corrupts the table: for instance, rewriting a file without its deletion
vector restores deleted rows. So a table with a feature that is not on the lists below is refused, naming the feature,
before anything is written. A feature that the protocol lists but the table does not use is not a reason to refuse it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

READABLE = frozenset({"columnMapping", "deletionVectors", "timestampNtz", "v2Checkpoint", "variantType"})
"""Supported reader features; column mapping only if no column was renamed, deletion vectors only if no file has one."""
WRITABLE = READABLE | {"appendOnly", "changeDataFeed", "checkConstraints", "generatedColumns", "invariants"}
"""Supported writer features; constraints, invariants and generated columns only if the table has none."""
_NEWEST_READER, _NEWEST_WRITER = 3, 7
_IDENTITY_WRITER = 6
"""Writer version that implies identity columns and all features of lower versions."""
_COLUMNS = {
    "delta.invariants": "an invariant",
    "delta.generationExpression": "an expression that generates it",
    "delta.identity.start": "the identity property",
    "delta.typeChanges": "a widened type",
}
_VECTORS = (
    "in Spark: ALTER TABLE {table} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'false'), "
    "then REORG TABLE {table} APPLY (PURGE)"
)
_RENAMED = "rename it back, or restore the table from a copy"
_CONSTRAINT = "in Spark: ALTER TABLE {table} DROP CONSTRAINT {name}"
_DROP = "in Spark: ALTER TABLE {table} DROP FEATURE {name}"
_TRUNCATE = f"{_DROP} TRUNCATE HISTORY, and once more a day later"
COPY = "restore the table's directory from a copy, or start in a new data directory"
_UNKNOWN = re.compile(r"Unsupported: Feature '?([\w-]+)'? is not supported")
_BELOW = re.compile(r"\s*(?:\x1b\[\d+m)?↳(?:\x1b\[0m)?\s*")
_DROPPED = {
    "clustering": "in Spark: ALTER TABLE {table} CLUSTER BY NONE, then DROP FEATURE clustering and domainMetadata",
    "rowTracking": "in Spark: ALTER TABLE {table} DROP FEATURE rowTracking, then DROP FEATURE domainMetadata",
    "checkpointProtection": _TRUNCATE,
    "allowColumnDefaults": COPY,
}


@dataclass(frozen=True)
class Features:
    """Requirements of a table's version on readers and writers.

    Attributes:
        reader, writer: protocol versions for readers and writers.
        of_readers, of_writers: the features that the protocol lists for readers and writers.
        properties: the table's properties.
        fields: the columns, as in the JSON schema of the table.
        has_vectors: returns whether any file has a deletion vector.
    """

    reader: int
    writer: int
    of_readers: Collection[str]
    of_writers: Collection[str]
    properties: Mapping[str, str]
    fields: Sequence[Mapping[str, Any]]
    has_vectors: Callable[[], bool]

    @classmethod
    def of(cls, table: Any, has_vectors: Callable[[], bool]) -> Features:
        """Return the features of a table that delta-rs has opened."""
        protocol = table.protocol()
        return cls(
            protocol.min_reader_version,
            protocol.min_writer_version,
            protocol.reader_features or (),
            protocol.writer_features or (),
            table.metadata().configuration,
            json.loads(table.schema().to_json())["fields"],
            has_vectors,
        )

    @property
    def append_only(self) -> bool:
        """Whether rows may only be added; files may still be replaced by other files with the same rows."""
        return self.properties.get("delta.appendOnly", "").lower() == "true"

    def unreadable(self, table: Path) -> str | None:
        """Return the reason why the rows of `table` cannot be read, with the remedy; None if they can."""
        return next(self._unreadable(table), None)

    def unwritable(self, table: Path) -> str | None:
        """Return the reason why `table` cannot be committed to, with the remedy; None if it can."""
        return next(self._unreadable(table), None) or next(self._unwritable(table), None)

    def _unreadable(self, table: Path) -> Iterator[str]:
        if self.reader > _NEWEST_READER:
            yield _refused(table, f"reader version {self.reader}", "is newer than this txstorm reads", COPY)
        yield from self._unlisted(table, self.of_readers, READABLE)
        if "deletionVectors" in self.of_readers and self.has_vectors():
            why = "marks rows of its files as deleted, which txstorm would read and write back"
            yield _refused(table, "feature deletionVectors", why, _VECTORS)
        for column, physical in _renamed(self.fields):
            why = f"has given column {column!r} the name {physical!r} in files, where txstorm would not find it"
            yield _refused(table, "feature columnMapping", why, _RENAMED)
        for column in self._columns("delta.typeChanges"):
            yield _refused(table, f"column {column!r}", "has a widened type, which older files do not have", COPY)

    def _unwritable(self, table: Path) -> Iterator[str]:
        if self.writer > _NEWEST_WRITER:
            yield _refused(table, f"writer version {self.writer}", "is newer than this txstorm writes", COPY)
        if self.writer == _IDENTITY_WRITER:
            yield _refused(table, "writer version 6", "demands identity columns, which txstorm cannot write", COPY)
        yield from self._unlisted(table, self.of_writers, WRITABLE)
        if self.properties.get("delta.enableDeletionVectors", "").lower() == "true":
            why = "lets others delete rows that stay in their files, which txstorm would write back"
            yield _refused(table, "property delta.enableDeletionVectors", why, _VECTORS)
        for name in sorted(self.properties):
            if name.startswith("delta.constraints."):
                remedy = _CONSTRAINT.replace("{name}", name.removeprefix("delta.constraints."))
                why = f"({self.properties[name]}) is not checked by txstorm"
                yield _refused(table, f"CHECK constraint {name.removeprefix('delta.constraints.')}", why, remedy)
        for key, what in _COLUMNS.items():
            for column in self._columns(key):
                yield _refused(table, f"column {column!r}", f"has {what}, which txstorm does not implement", COPY)
        for field in self.fields:
            if not field.get("nullable", True):
                yield _refused(table, f"column {field['name']!r}", "is NOT NULL, which txstorm does not check", COPY)

    def _unlisted(self, table: Path, listed: Collection[str], known: Collection[str]) -> Iterator[str]:
        # Domain metadata come with other features, which have to be dropped first.
        for name in sorted(set(listed) - set(known), key=lambda name: (name == "domainMetadata", name)):
            usual = _TRUNCATE if name in self.of_readers else _DROP
            remedy = _DROPPED.get(name, usual).replace("{name}", name)
            yield _refused(table, f"feature {name}", "is not supported by txstorm", remedy)

    def _columns(self, key: str) -> Iterator[str]:
        return (name for name, about in self._described if key in about)

    @cached_property
    def _described(self) -> Sequence[tuple[str, Mapping[str, Any]]]:
        return [(str(field["name"]), about) for field in self.fields if (about := _about(field))]


def unsupported_text(table: Path, error: str) -> str | None:
    """Return the message that refuses `table` if `error` is a delta-rs error about an unknown feature, else None."""
    found = _UNKNOWN.search(error)
    return _refused(table, f"feature {found[1]}", "is not supported by txstorm", COPY) if found else None


def append_only_text(table: Path) -> str:
    """Return the reason why rows of the append-only `table` cannot be removed, with the remedy."""
    remedy = "in Spark: ALTER TABLE {table} SET TBLPROPERTIES ('delta.appendOnly' = 'false')"
    return _refused(table, "property delta.appendOnly", "forbids removing or replacing rows", remedy)


def _about(field: Mapping[str, Any]) -> Mapping[str, Any]:
    found = field.get("metadata")
    return found if isinstance(found, Mapping) else {}


def _renamed(fields: Sequence[Mapping[str, Any]], within: str = "") -> Iterator[tuple[str, str]]:
    """Yield renamed columns, including those within structs, with their names in the data files."""
    for field in fields:
        physical = _about(field).get("delta.columnMapping.physicalName", field["name"])
        if physical != field["name"]:
            yield within + field["name"], physical
        yield from _renamed(_inner(field.get("type")), f"{within}{field['name']}.")


def _inner(kind: Any) -> Sequence[Mapping[str, Any]]:
    """Return the fields of a struct, or of structs in a list or map."""
    if not isinstance(kind, Mapping):
        return ()
    nested = [kind.get(name) for name in ("elementType", "keyType", "valueType")]
    return [*kind.get("fields", ()), *(field for inner in nested for field in _inner(inner))]


def _refused(table: Path, what: str, why: str, remedy: str) -> str:
    named = remedy.replace("{table}", f"delta.`{table.absolute()}`")
    return f"table {table}: its {what} {why}; nothing was written to it; {named}; then continue"


def first_line(error: BaseException) -> str:
    """Return the message of a delta-rs error, with its causes, on one line and without the library's stack."""
    lines = _BELOW.sub(": ", str(error)).splitlines()
    return lines[0].strip() if lines else type(error).__name__
