"""The intent: the durable decision to commit a group of txids, which can be published without the topology's code.

Also its JSON form, and the validation of intents read back from a ledger.
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
    """Description of one staged file in an intent.

    Attributes:
        path: the file's path, relative to its table.
        size: the file's size in bytes.
        digest: BLAKE2b digest of the file, as hex.
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
        """Parse the result of `to_json`; raise `ValueError` unless the path is that of a staged file."""
        if not isinstance(found["path"], str) or not _STAGED_PATH.fullmatch(found["path"]):
            raise ValueError(f"expected the path of a file in {STAGED}, got {found['path']!r}")
        return cls(**{name: found[name] for name in cls.__slots__})


FORMAT, VERSION = "txstorm-intent", 2
ONE_FILE = 1
"""Format version of intents in which each table has one staged file; older releases write and read only these."""
CHANGES, STATE, SINK, MAP, OUTLET, LETTERS = "changes", "state", "sink", "map", "outlet", "dead-letters"
CHECKPOINT, STORE = "checkpoint", "store"


class Kind(NamedTuple):
    """One kind of commit target: the name in intents, the directory, and whether its rows are outside of the tables.

    What is outside is committed in a user's external system, or by hooks, to which only the topology's code has access.
    """

    name: str
    directory: str
    outside: bool = False


KINDS = (
    Kind(CHANGES, "changes"),
    Kind(STATE, "state"),
    Kind(SINK, "sinks"),
    Kind(MAP, "maps", outside=True),
    Kind(OUTLET, "outlets", outside=True),
    Kind(CHECKPOINT, "checkpoints", outside=True),
    Kind(STORE, "stores", outside=True),
    Kind(LETTERS, "dead_letters"),
)
"""All kinds that txstorm has. A topology's code may bring others, whose names begin with `FOREIGN`."""
FOREIGN = "x-"
"""Prefix of the name, which is also the directory, of a kind that the topology's code brings; it is always outside."""
_NAMED, _IN = {one.name: one for one in KINDS}, {one.directory: one for one in KINDS}


def kind_named(name: str) -> Kind | None:
    """Return the kind with this name in intents; None if there cannot be one."""
    return _NAMED.get(name) or (Kind(name, name, outside=True) if _is_foreign(name) else None)


def kind_in(directory: str) -> Kind | None:
    """Return the kind whose targets are in this directory of the data directory; None if there is none."""
    return _IN.get(directory) or (Kind(directory, directory, outside=True) if _is_foreign(directory) else None)


def is_outside(uri: str) -> bool:
    """Return whether the target with this uri is outside of the tables."""
    kind = kind_in(uri.partition("/")[0])
    return kind is not None and kind.outside


def _is_foreign(name: str) -> bool:
    return name.startswith(FOREIGN) and name_fault("kind", name) is None


class TxidRecord(NamedTuple):
    """Record of one decided txid in an intent.

    Attributes:
        txid: the transaction's id.
        attempt_id: the attempt to be committed.
        digest: digest of the attempt's input.
        extents: the ranges read from the source, as JSON values.
        stamp: its processing time, in UTC microseconds since 1970.
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
        """Parse the result of `to_json`."""
        return cls(found["txid"], found["attempt"], found["digest"], found["extents"], found["stamp"])


UNKNOWN = -1
"""`IntentTable.previous` of a map or outlet in an intent rebuilt from staged files.

The last txid is then recorded only in the external system, by the map's or outlet's mark.
"""


@dataclass(frozen=True, slots=True)
class IntentTable:
    """One target of an intent: a table, or a map or outlet in an external system.

    Attributes:
        kind: the name of a `Kind`.
        name: the name of the state, sink, map, outlet or stateful bolt; empty for the dead-letter table.
        uri: the directory of the table, or of the staged rows of a map or outlet, relative to the data directory.
        schema: the Arrow schema of the staged rows, serialized as Arrow IPC and encoded as base64.
        previous: the last txid of the table before this group; `UNKNOWN` if it was lost with the ledger.
        staged: the staged file, or the first of several.
        more: the other staged files; in a large commit, each task stages one.
    """

    kind: str
    name: str
    uri: str
    schema: str
    previous: int
    staged: Staged
    more: tuple[Staged, ...] = ()

    @property
    def outside(self) -> bool:
        """Whether the rows are for something outside of the tables."""
        return is_outside(self.uri)

    @property
    def files(self) -> tuple[Staged, ...]:
        """All staged files of this target."""
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
        """Parse the result of `to_json`; raise `LedgerCorrupt` or `ValueError` for a path outside the directory."""
        check_place(found["kind"], found["name"], found["uri"])
        staged = Staged.from_json(found["staged"])
        more = tuple(map(Staged.from_json, found.get("more", ())))
        return cls(found["kind"], found["name"], found["uri"], found["schema"], found["previous"], staged, more)


@dataclass(frozen=True, slots=True)
class Intent:
    """A decided group: consecutive txids, and the staged rows for every table that they write to.

    Attributes:
        topology: the topology's id.
        incarnation: random id, generated by the first run in the data directory.
        timeline: 0 at first; every rewind adds 1.
        epoch: the epoch of the coordinator that recorded the decision.
        txids: one record per txid, in order and without gaps.
        tables: the tables to write to, in the order in which they are published.
    """

    topology: str
    incarnation: str
    timeline: int
    epoch: int
    txids: tuple[TxidRecord, ...]
    tables: tuple[IntentTable, ...]

    @property
    def first(self) -> int:
        """The first txid of the group."""
        return self.txids[0].txid

    @property
    def last(self) -> int:
        """The last txid of the group."""
        return self.txids[-1].txid

    @property
    def waits_for_code(self) -> bool:
        """Whether it has rows for something outside of the tables, which only the topology's code can publish."""
        return any(table.outside for table in self.tables)

    def to_json(self) -> dict[str, Any]:
        """Return the intent as JSON values, including the format version."""
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
        """Parse the result of `to_json`.

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
    """Encode an Arrow schema as text: serialized as Arrow IPC, then base64."""
    return base64.b64encode(schema.serialize()).decode("ascii")


def encode(intent: Intent) -> bytes:
    """Encode the intent as JSON bytes; equal intents give equal bytes."""
    return json.dumps(intent.to_json(), sort_keys=True, allow_nan=False).encode()


def decode(data: bytes) -> Intent:
    """Decode the result of `encode`; raises the errors of `Intent.from_json`."""
    try:
        found = json.loads(data)
    except ValueError as cause:
        raise LedgerCorrupt(f"intent: expected JSON, got {data[:40]!r}…; the ledger is damaged, restore it") from cause
    return Intent.from_json(found)


def _check_format(found: Any) -> None:
    if not isinstance(found, Mapping) or found.get("format") != FORMAT or not isinstance(found.get("version"), int):
        msg = f"intent: expected format {FORMAT!r}, got {str(found)[:60]!r}; the ledger is damaged, restore it"
        raise LedgerCorrupt(msg)
    if found["version"] > VERSION:
        msg = f"intent: format version {found['version']} is newer than {VERSION}, which this txstorm reads; upgrade it"
        raise DataDirectoryError(msg)


def check_place(kind: str, name: str, uri: str) -> None:
    """Raise `LedgerCorrupt` unless `uri` is the directory that belongs to `kind` and `name` in the data directory."""
    # There is only one dead-letter table; its name is empty.
    found = kind_named(kind)
    expected = found and (found.directory if kind == LETTERS and not name else f"{found.directory}/{name}")
    if uri != expected or not (name_fault(kind, name) is None or (kind == LETTERS and not name)):
        raise LedgerCorrupt(
            f"ledger: expected a table of this data directory, got {kind!r} named {name!r} in {uri!r}; the ledger is "
            "damaged or was changed by hand, restore it"
        )


def _check_gaps(intent: Intent) -> None:
    txids = [record.txid for record in intent.txids]
    if not txids or txids != list(range(txids[0], txids[0] + len(txids))):
        raise LedgerCorrupt(f"intent: expected consecutive txids, got {txids}; the ledger is damaged, restore it")
