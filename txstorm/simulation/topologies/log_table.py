"""A table for `DeltaHandle` that reads the log in Python: for logs of a few entries a third of the time of delta-rs.

Worlds open a table some thirty times. What a table without a checkpoint needs is done here; anything else, such as
checkpoints and changes of properties, is left to delta-rs.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa

from txstorm.clients.delta import handle, log
from txstorm.clients.delta.log import LOG, entry_name
from txstorm.clients.delta.window import Window

_DELTA_RS = vars(handle)
"""Names of delta-rs as the handle knows them: it is the only module that imports them."""
DeltaTable, Schema, DeltaError = _DELTA_RS["DeltaTable"], _DELTA_RS["Schema"], _DELTA_RS["DeltaError"]
_ACTIONS = pa.schema(
    {
        "path": pa.string(),
        "size_bytes": pa.int64(),
        "modification_time": pa.timestamp("ms"),
        "num_records": pa.int64(),
    }
)


@contextmanager
def logs_in_python() -> Iterator[None]:
    """Within it, tables are read with `LogTable`, and the content of each entry is checked once."""
    _DELTA_RS["DeltaTable"], _DELTA_RS["Window"], check = LogTable, _Window, log.checked_entry
    log.checked_entry = lru_cache(4096)(check)
    try:
        yield
    finally:
        _DELTA_RS["DeltaTable"], _DELTA_RS["Window"], log.checked_entry = DeltaTable, Window, check


def _has_checkpoint(table: Path) -> bool:
    try:
        return any(".checkpoint" in name for name in os.listdir(f"{table}/{LOG}"))
    except FileNotFoundError:
        return False


class _Window(Window):
    """A window for `LogTable`, which reads up to a given version: links are only made for delta-rs."""

    @classmethod
    def newest(cls, table: Path, *, once: bool = False) -> Window:
        return super().newest(table, once=once or not _has_checkpoint(table))


class LogTable:
    """The part of `deltalake.DeltaTable` that `DeltaHandle` uses."""

    def __new__(cls, path: str, version: int | None = None) -> Any:
        """Open the table at `path`; with delta-rs if its log has a checkpoint."""
        if _has_checkpoint(Path(path)):
            return DeltaTable(path, version)
        return super().__new__(cls)

    def __init__(self, path: str, version: int | None = None) -> None:
        self._path, self._log = path, Path(path) / LOG
        self._version = -1
        self._apps: dict[str, int] = {}
        self._files: dict[str, Mapping[str, Any]] = {}
        self._meta: Mapping[str, Any] = {}
        self._protocol: Mapping[str, Any] = {}
        self._read(version)

    @classmethod
    def create(
        cls,
        path: str,
        *,
        schema: Any,
        configuration: Mapping[str, str],
        commit_properties: Any,
        raise_if_key_not_exists: bool,
    ) -> None:
        """Write the first entry of a log, as delta-rs does."""
        meta: dict[str, Any] = {
            "id": str(uuid.uuid4()),
            "name": None,
            "description": None,
            "format": {"provider": "parquet", "options": {}},
            "schemaString": schema.to_json(),
            "partitionColumns": [],
            "createdTime": 0,
            "configuration": dict(configuration),
        }
        actions = [
            {"commitInfo": {"operation": "CREATE TABLE", **(commit_properties.custom_metadata or {})}},
            {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
            {"metaData": meta},
            *(
                {"txn": {"appId": one.app_id, "version": one.version}}
                for one in commit_properties.app_transactions or ()
            ),
        ]
        log = Path(path) / LOG
        log.mkdir(exist_ok=True)
        try:
            with (log / entry_name(0)).open("xb") as entry:  # which delta-rs does not sync
                entry.write("\n".join(map(json.dumps, actions)).encode())
        except FileExistsError as there:
            raise DeltaError(f"a table exists at {path}") from there

    def version(self) -> int:
        """Return the version that was read."""
        return self._version

    def load_as_version(self, version: int) -> None:
        """Read the log up to `version`, which may be an earlier one."""
        if version < self._version:
            self.__init__(self._path, version)  # type: ignore[misc]
        else:
            self._read(version)

    def schema(self) -> Any:
        """Return the columns."""
        return _schema(self._meta["schemaString"])

    def metadata(self) -> SimpleNamespace:
        """Return the metadata."""
        meta = self._meta
        return SimpleNamespace(
            id=meta["id"],
            name=meta["name"],
            description=meta["description"],
            partition_columns=meta["partitionColumns"],
            created_time=meta["createdTime"],
            configuration=meta["configuration"],
        )

    def protocol(self) -> SimpleNamespace:
        """Return the versions of the protocol."""
        found = self._protocol
        return SimpleNamespace(
            min_reader_version=found["minReaderVersion"],
            min_writer_version=found["minWriterVersion"],
            reader_features=found.get("readerFeatures"),
            writer_features=found.get("writerFeatures"),
        )

    def transaction_version(self, app_id: str) -> int | None:
        """Return the last version of an app transaction."""
        return self._apps.get(app_id)

    def get_add_actions(self, *, flatten: bool) -> pa.Table:
        """Return the files with their numbers of rows, without bounds of columns."""
        rows = [
            {
                "path": path,
                "size_bytes": add["size"],
                "modification_time": add["modificationTime"],
                "num_records": _records(add.get("stats") or "{}"),
            }
            for path, add in self._files.items()
        ]
        return pa.Table.from_pylist(rows, _ACTIONS)

    def deletion_vectors(self) -> list[Any]:
        """Return no deletion vectors: worlds have none."""
        return []

    def __getattr__(self, name: str) -> Any:
        return getattr(DeltaTable(self._path, self._version), name)

    def _read(self, last: int | None) -> None:
        while last is None or self._version < last:
            try:
                with open(f"{self._log}/{entry_name(self._version + 1)}", "rb") as entry:
                    text = entry.read()
            except FileNotFoundError:
                if last is None and self._version >= 0:
                    return
                raise DeltaError(f"no version {self._version + 1} at {self._path}") from None
            for action in _actions(text):
                self._take(action)
            self._version += 1

    def _take(self, action: Mapping[str, Any]) -> None:
        for kind, value in action.items():
            if kind == "txn":
                self._apps[value["appId"]] = value["version"]
            elif kind == "add":
                self._files[value["path"]] = value
            elif kind == "remove":
                self._files.pop(value["path"], None)
            elif kind == "metaData":
                self._meta = value
            elif kind == "protocol":
                self._protocol = value


@lru_cache(4096)
def _actions(entry: bytes) -> Sequence[Mapping[str, Any]]:
    """Return the actions of an entry of a log; a world reads each entry many times."""
    return [json.loads(line) for line in entry.splitlines()]


@lru_cache(4096)
def _records(stats: str) -> int | None:
    """Return the number of rows in the statistics of a file."""
    records: int | None = json.loads(stats).get("numRecords")
    return records


@cache
def _schema(text: str) -> Any:
    return Schema.from_json(text)
