"""Columns of a Delta table as a source: their types, their names in the files, and the features they need."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from txstorm.ddl import FrameColumn, columns_text, frame_columns, quoted
from txstorm.errors import SettingError
from txstorm.spouts.delta.source_log import SourceLog

READABLE = frozenset(
    {
        "columnMapping",
        "deletionVectors",
        "timestampNtz",
        "typeWidening",
        "typeWidening-preview",
        "v2Checkpoint",
        "vacuumProtocolCheck",
        "variantType",
    }
)
"""Reader features that do not keep a table from being read; columns of types without values in Python do."""
OF_CHANGES = {"_change_type": "string", "_commit_version": "bigint", "_commit_timestamp": "timestamp"}
"""Columns of a change data feed, as Spark names them."""
FEED = "delta.enableChangeDataFeed"
_NEWEST_READER = 3
_CHAR = re.compile(r"\bchar\(")
_SPARK = {"integer": "int", "long": "bigint", "short": "smallint", "byte": "tinyint"}


@dataclass(frozen=True)
class TableColumns:
    """The columns with which a table is read, also what was written when it had others.

    Attributes:
        version: the version that has them.
        fields: the columns, as in the JSON schema of the table.
        partitions: names of the partition columns.
        by_id: whether columns are found in files by their ids, and not by their names there.
        changes: whether the columns of a change data feed follow.
        columns: name → type, of all of them.
    """

    version: int
    fields: Sequence[Mapping[str, Any]]
    partitions: frozenset[str]
    by_id: bool
    changes: bool
    columns: Mapping[str, FrameColumn]

    @classmethod
    def of(cls, log: SourceLog, version: int, *, changes: bool) -> TableColumns:
        """Return the columns of `version`; raise `SpoutError` if the table, or one of them, cannot be read."""
        shape = log.shape(version)
        check_protocol(log, shape.protocol, version)
        fields, mode = shape.fields, shape.properties.get("delta.columnMapping.mode", "none")
        types = {str(field["name"]): _ddl(field["type"]) for field in fields}
        for field in fields:
            if _CHAR.search(str(field.get("metadata", {}).get("__CHAR_VARCHAR_TYPE_STRING", ""))):
                what = f"column {field['name']!r}: CHAR has values that readers fill up with blanks; copy it as STRING"
                raise log.fault(what)
        if changes and (taken := sorted(set(types) & set(OF_CHANGES))):
            raise log.fault(f"columns {taken} have the names of those of a change data feed; rename them")
        try:
            columns = frame_columns(columns_text({**types, **(OF_CHANGES if changes else {})}))
        except SettingError as error:
            raise log.fault(str(error).partition("': ")[2]) from None
        partitions = frozenset(shape.table.get("partitionColumns") or ())
        return cls(version, fields, partitions, mode == "id", changes, columns)

    @property
    def is_plain(self) -> bool:
        """Whether any reader of Parquet files finds all columns in them, by the names and types that they have here."""
        whole = not (self.partitions or self.by_id or self.changes)
        return whole and not re.search(r"physicalName|typeChanges", json.dumps(self.fields))

    def difference(self, fields: Sequence[Mapping[str, Any]]) -> list[str]:
        """Return the names of the columns that are others in `fields`, a later schema of the table."""
        mine, found = ({str(one["name"]): _essence(one) for one in given} for given in (self.fields, fields))
        return sorted(name for name in {*mine, *found} if mine.get(name) != found.get(name))


def check_protocol(log: SourceLog, protocol: Mapping[str, Any], version: int) -> None:
    """Raise `SpoutError` if a protocol demands what this spout cannot do."""
    reader = int(protocol["minReaderVersion"])
    unknown = sorted(set(protocol.get("readerFeatures") or ()) - READABLE)
    if reader > _NEWEST_READER or unknown:
        what = f"feature {unknown[0]}" if unknown else f"reader version {reader}"
        raise log.fault(f"version {version} needs {what}, which txstorm does not support; copy it to another table")


def physical_name(field: Mapping[str, Any]) -> str:
    """Return the name of a column in data files and partition values."""
    return str(field.get("metadata", {}).get("delta.columnMapping.physicalName", field["name"]))


def _ddl(kind: Any) -> str:
    """Return a type of a Delta schema as Spark writes it; of a map, only what it is."""
    if not isinstance(kind, Mapping):
        return _SPARK.get(kind, str(kind))
    if kind["type"] == "struct":
        parts = [f"{quoted(str(one['name']))}: {_ddl(one['type'])}" for one in kind["fields"]]
        return f"struct<{', '.join(parts)}>"
    return f"array<{_ddl(kind['elementType'])}>" if kind["type"] == "array" else str(kind["type"])


def _essence(field: Mapping[str, Any]) -> Any:
    """Return what is needed to read a column, for comparison."""
    return physical_name(field), _bare(field["type"])


def _bare(kind: Any) -> Any:
    if not isinstance(kind, Mapping):
        return kind
    parts = [(one["name"], *_essence(one)) for one in kind.get("fields", ())]
    return kind["type"], _bare(kind.get("elementType")), parts
