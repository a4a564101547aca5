"""Versions of a Delta ledger's table, as documents: changed entries, the lease, and snapshots of all entries.

Each version of the table carries one document in its commit info. The content of the ledger is that of the last
snapshot (a Parquet file of the table) with the later documents applied.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from txstorm.errors import DataDirectoryError, LedgerCorrupt
from txstorm.ledger.lease import Holder
from txstorm.ledger.port import Entry, replace

FORMAT = 1
PROPERTY = "txstorm.ledger"
CREATE, COMMIT, LEASE, SNAPSHOT = "create", "commit", "lease", "snapshot"
SCHEMA = pa.schema([("path", pa.string()), ("value", pa.binary()), ("version", pa.int64())])
_CHECK = "check"


@dataclass(frozen=True)
class LeaseRow:
    """The lease as the ledger stores it.

    Attributes:
        token: unique for each acquisition; every version that the holder writes carries it.
        owner: the holder's name for itself.
        pid: the holder's process id.
        host: the holder's machine.
        since: when the holder acquired the lease, ISO 8601.
        millis: duration of the lease after the last version of its holder, in milliseconds.
        process: see `txstorm.ledger.lease.process_mark`.
    """

    token: str
    owner: str
    pid: int
    host: str
    since: str
    millis: int
    process: str

    @property
    def seconds(self) -> float:
        """Seconds that the lease lasts after its holder's last version."""
        return self.millis / 1000

    def holder(self) -> Holder:
        """Return the holder, for messages."""
        return Holder(self.owner, self.pid, self.host, self.since)


@dataclass
class Content:
    """Content of a ledger as of a version of its table.

    Attributes:
        version: the version of the table that the content reflects.
        snapshot: the version that wrote the snapshot file; 0 without one.
        entries: path → entry.
        lease: the current lease; None if it is free.
        sign: the last version that the holder of the lease wrote.
        written_at: the holder's wall-clock time when it wrote `sign`, ISO 8601; for display only.
    """

    version: int = 0
    snapshot: int = 0
    entries: dict[str, Entry] = field(default_factory=dict)
    lease: LeaseRow | None = None
    sign: int = 0
    written_at: str = ""

    def apply(self, document: Mapping[str, Any]) -> None:
        """Apply the `document` of the next version; an empty one, from a foreign writer, changes no entry."""
        self.version += 1
        if not document:
            return
        for path, value, version in document["changes"]:
            replace(self.entries, {path: None if value is None else Entry(base64.b64decode(value), version)})
        if document["kind"] in (LEASE, SNAPSHOT):
            lease = document["lease"]
            self.lease = None if lease is None else LeaseRow(**lease)
        if document["kind"] == SNAPSHOT:
            self.snapshot = self.version
        if self.lease is not None and document["by"] == self.lease.token:
            self.sign, self.written_at = self.version, document["at"]


def document_of(
    kind: str,
    unique: str,
    *,
    at: str,
    by: str = "",
    changes: Mapping[str, Entry | None] | None = None,
    lease: LeaseRow | None = None,
) -> dict[str, Any]:
    """Build the document of a version.

    Args:
        kind: the kind of version; only `LEASE` and `SNAPSHOT` set the lease.
        unique: unique id of the document, by which a writer that received no response recognizes its own version.
        at: the wall-clock time, ISO 8601.
        by: the token of the writer's lease, if it holds one.
        changes: path → its new entry, None for a deleted one.
        lease: the lease as of this version; None if it is free.
    """
    rows = [
        [path, None, 0] if entry is None else [path, base64.b64encode(entry.value).decode("ascii"), entry.version]
        for path, entry in (changes or {}).items()
    ]
    document = {
        "format": FORMAT,
        "kind": kind,
        "id": unique,
        "by": by,
        "at": at,
        "changes": rows,
        "lease": None if lease is None else asdict(lease),
    }
    return {**document, _CHECK: _checksum(document)}


def checked(document: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """Return `document` if its checksum is correct.

    Raises:
        LedgerCorrupt: the checksum does not match.
        DataDirectoryError: the format is newer.
    """
    if not document:
        return document
    if isinstance(document.get("format"), int) and document["format"] > FORMAT:
        raise DataDirectoryError(
            f"{where}: expected format {FORMAT}, got {document['format']}; use the txstorm that wrote it"
        )
    if document.get(_CHECK) != _checksum({name: one for name, one in document.items() if name != _CHECK}):
        raise _corrupt(where, "an entry with another checksum than it was written with")
    return document


def _checksum(document: Mapping[str, Any]) -> str:
    return blake2b(json.dumps(document, sort_keys=True).encode(), digest_size=16).hexdigest()


def snapshot_path(version: int, unique: str) -> str:
    """Return the path of the snapshot as of `version`, relative to the table."""
    return f"snapshots/{version}-{unique}.parquet"


def snapshot_version(paths: Sequence[str], where: str) -> int:
    """Return the version in the name of the only snapshot among a table's `paths`; 0 if there is none."""
    if not paths:
        return 0
    name = paths[0].removeprefix("snapshots/").partition("-")[0]
    if len(paths) > 1 or not paths[0].startswith("snapshots/") or not name.isdecimal():
        raise _corrupt(where, f"the files {', '.join(paths[:3])} instead of one snapshot: another program wrote to it")
    return int(name)


def encode_snapshot(entries: Mapping[str, Entry]) -> bytes:
    """Encode all entries as a Parquet file with the columns of `SCHEMA`."""
    paths = sorted(entries)
    found = [entries[path] for path in paths]
    columns = [paths, [entry.value for entry in found], [entry.version for entry in found]]
    table = pa.table([pa.array(column, one.type) for column, one in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, write_page_checksum=True)
    return bytes(sink.getvalue())


def decode_snapshot(data: bytes | None, where: str) -> dict[str, Entry]:
    """Decode the result of `encode_snapshot`; raise `LedgerCorrupt` if it is damaged or None."""
    if data is None:
        raise _corrupt(where, "no such file")
    try:
        rows = pq.read_table(pa.BufferReader(data), page_checksum_verification=True)
        columns = [rows[name].to_pylist() for name in SCHEMA.names]
    except (pa.ArrowException, OSError, KeyError, binascii.Error) as cause:
        raise _corrupt(where, f"a file that cannot be read ({cause})") from cause
    return {path: Entry(value, version) for path, value, version in zip(*columns, strict=True)}


def _corrupt(where: str, found: str) -> LedgerCorrupt:
    return LedgerCorrupt(
        f"{where}: expected what txstorm wrote, got {found}; restore it from a copy taken together with the tables, or "
        "move it away and rebuild the ledger: txstorm recover DATA_DIR"
    )
