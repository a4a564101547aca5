"""The intent: the recorded decision about a group of txids, complete enough to publish it without the topology's code.

Its JSON form, and the validation of intents read back from a ledger.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from txstorm.api.names import name_fault
from txstorm.errors import DataDirectoryError, LedgerCorrupt

if TYPE_CHECKING:
    import pyarrow as pa


STAGED = "_txstorm/staged"
_STAGED_PATH = re.compile(rf"{STAGED}/[^/\\\0]*[^/\\\0.][^/\\\0]*")


@dataclass(frozen=True, slots=True)
class Staged:
    """One staged file, as an intent describes it.

    Attributes:
        path: relative to its table.
        size: in bytes.
        digest: blake2b over the bytes, as hex.
        rows: number of rows.
        stats: Delta's statistics of the file, as JSON.
        first: lowest txid of its rows.
        last: highest txid of its rows.
    """

    path: str
    size: int
    digest: str
    rows: int
    stats: str
    first: int
    last: int

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values, for an intent."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Staged:
        """Read the result of `to_json`; raise `ValueError` unless the path is that of a staged file."""
        if not isinstance(found["path"], str) or not _STAGED_PATH.fullmatch(found["path"]):
            raise ValueError(f"expected the path of a file in {STAGED}, got {found['path']!r}")
        return cls(**{name: found[name] for name in cls.__slots__})


FORMAT, VERSION = "txstorm-intent", 2
ONE_FILE = 1
"""Format version of an intent whose tables have one staged file each: older releases wrote and read only these."""
CHANGES, STATE, SINK, MAP, OUTLET, LETTERS = "changes", "state", "sink", "map", "outlet", "dead-letters"
DIRECTORIES = {
    CHANGES: "changes",
    STATE: "state",
    SINK: "sinks",
    MAP: "maps",
    OUTLET: "outlets",
    LETTERS: "dead_letters",
}
OUTSIDE = (MAP, OUTLET)
"""Kinds whose rows go to an external system of the user, which only the topology's code can reach."""


class TxidRecord(NamedTuple):
    """One decided txid.

    Attributes:
        txid: the transaction.
        attempt_id: the attempt that was decided.
        digest: digest of its input.
        extents: the ranges read from the source, as JSON values.
        stamp: its processing time, UTC microseconds since 1970.
    """

    txid: int
    attempt_id: int
    digest: str
    extents: Any
    stamp: int

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values, for an intent or a commit info."""
        return {
            "txid": self.txid,
            "attempt": self.attempt_id,
            "digest": self.digest,
            "extents": self.extents,
            "stamp": self.stamp,
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> TxidRecord:
        """Read the result of `to_json`."""
        return cls(found["txid"], found["attempt"], found["digest"], found["extents"], found["stamp"])


UNKNOWN = -1
"""`IntentTable.previous` of a map or outlet in an intent rebuilt from staged files: its mark, outside, knows the txid.
"""


@dataclass(frozen=True, slots=True)
class IntentTable:
    """One table that an intent writes to, or one map or outlet in an external system.

    Attributes:
        kind: ``changes``, ``sink``, ``map``, ``outlet`` or ``dead-letters``.
        name: the state's, sink's, map's or outlet's name; empty for the one table of dead letters.
        uri: the directory of the table, or of the staged rows of a map or outlet, relative to the data directory.
        schema: the Arrow schema of the staged rows, as base64 of Arrow IPC.
        previous: the last txid of the table before this group; `UNKNOWN` if it was lost with the ledger.
        staged: the staged file, or the first of several.
        more: the other staged files: each task of a large commit stages one.
    """

    kind: str
    name: str
    uri: str
    schema: str
    previous: int
    staged: Staged
    more: tuple[Staged, ...] = ()

    @property
    def files(self) -> tuple[Staged, ...]:
        """All staged files."""
        return (self.staged, *self.more)

    def arrow_schema(self) -> pa.Schema:
        """Return the schema of the staged rows."""
        import pyarrow as pa  # not at the top: a status query needs intents, but need not wait for this import

        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(self.schema)))

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values, for an intent."""
        more = {"more": [staged.to_json() for staged in self.more]} if self.more else {}
        return {
            "kind": self.kind,
            "name": self.name,
            "uri": self.uri,
            "schema": self.schema,
            "previous": self.previous,
            "staged": self.staged.to_json(),
            **more,
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> IntentTable:
        """Read the result of `to_json`; raise `LedgerCorrupt` or `ValueError` for paths outside its directory."""
        check_place(found["kind"], found["name"], found["uri"])
        staged = Staged.from_json(found["staged"])
        more = tuple(map(Staged.from_json, found.get("more", ())))
        return cls(found["kind"], found["name"], found["uri"], found["schema"], found["previous"], staged, more)


@dataclass(frozen=True, slots=True)
class Intent:
    """A decided group: consecutive txids, and the staged rows of every table they touch.

    Attributes:
        topology: the topology's id.
        incarnation: random id created at the first run of the data directory.
        timeline: 0 at first; every rewind adds 1.
        epoch: the epoch of the coordinator that decided.
        txids: one record per txid, in order, without gaps.
        tables: in the order in which they are published.
    """

    topology: str
    incarnation: str
    timeline: int
    epoch: int
    txids: tuple[TxidRecord, ...]
    tables: tuple[IntentTable, ...]

    @property
    def first(self) -> int:
        """The first txid."""
        return self.txids[0].txid

    @property
    def last(self) -> int:
        """The last txid."""
        return self.txids[-1].txid

    def to_json(self) -> dict[str, Any]:
        """Return the intent as JSON values, with the version of the format."""
        return {
            "format": FORMAT,
            "version": VERSION if any(table.more for table in self.tables) else ONE_FILE,
            "topology": self.topology,
            "incarnation": self.incarnation,
            "timeline": self.timeline,
            "epoch": self.epoch,
            "txids": [record.to_json() for record in self.txids],
            "tables": [table.to_json() for table in self.tables],
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Intent:
        """Read the result of `to_json`.

        Raises:
            DataDirectoryError: it was written by a newer txstorm.
            LedgerCorrupt: it is not an intent.
        """
        _check_format(found)
        try:
            txids = tuple(TxidRecord.from_json(record) for record in found["txids"])
            tables = tuple(IntentTable.from_json(table) for table in found["tables"])
            intent = cls(found["topology"], found["incarnation"], found["timeline"], found["epoch"], txids, tables)
        except (KeyError, TypeError, ValueError) as cause:
            msg = f"intent: a field is missing or has another form: {cause!r}; the ledger is damaged, restore it"
            raise LedgerCorrupt(msg) from cause
        _check_gaps(intent)
        return intent


def encode_schema(schema: pa.Schema) -> str:
    """Encode an Arrow schema as text: base64 of Arrow IPC."""
    return base64.b64encode(schema.serialize()).decode("ascii")


def encode(intent: Intent) -> bytes:
    """Encode the intent as JSON bytes; equal intents give equal bytes."""
    return json.dumps(intent.to_json(), sort_keys=True, allow_nan=False).encode()


def decode(data: bytes) -> Intent:
    """Decode the result of `encode`; raises the errors of `Intent.from_json`."""
    try:
        found = json.loads(data)
    except ValueError as cause:
        msg = f"intent: expected JSON, got {data[:40]!r}…; the ledger is damaged, restore it"
        raise LedgerCorrupt(msg) from cause
    return Intent.from_json(found)


def _check_format(found: Any) -> None:
    if not isinstance(found, Mapping) or found.get("format") != FORMAT or not isinstance(found.get("version"), int):
        msg = f"intent: expected format {FORMAT!r}, got {str(found)[:60]!r}; the ledger is damaged, restore it"
        raise LedgerCorrupt(msg)
    if found["version"] > VERSION:
        msg = f"intent: format version {found['version']} is newer than {VERSION}, which this txstorm reads; upgrade it"
        raise DataDirectoryError(msg)


def check_place(kind: str, name: str, uri: str) -> None:
    """Raise `LedgerCorrupt` unless `uri` is the directory of the table `name`, relative to the data directory."""
    # There is one table of dead letters; its name is empty.
    expected = "dead_letters" if kind == LETTERS and not name else f"{DIRECTORIES.get(kind)}/{name}"
    named = name_fault(kind, name) is None or (kind == LETTERS and not name)
    if kind not in DIRECTORIES or not named or uri != expected:
        msg = (
            f"ledger: expected a table of this data directory, got {kind!r} named {name!r} in {uri!r}; the ledger is "
            "damaged or was changed by hand, restore it"
        )
        raise LedgerCorrupt(msg)


def _check_gaps(intent: Intent) -> None:
    txids = [record.txid for record in intent.txids]
    if not txids or txids != list(range(txids[0], txids[0] + len(txids))):
        msg = f"intent: expected consecutive txids, got {txids}; the ledger is damaged, restore it"
        raise LedgerCorrupt(msg)
