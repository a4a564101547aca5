"""Records of a ledger: the validators of its values, and the typed values that `Books` returns.

The validators reject JSON that was edited by hand or is corrupt: only the SQLite file has checksums of txstorm;
ZooKeeper and Delta store values without them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from txstorm.clocks import Clock
from txstorm.errors import DataDirectoryError, LedgerCorrupt
from txstorm.ledger import paths as names
from txstorm.storage.tables.intent import Intent, is_outside, kind_in

Shape = Callable[[Any], bool]
_MOST = 1 << 63


def _number(value: Any) -> bool:
    return type(value) is int and 0 <= value < _MOST


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _texts(value: Any) -> bool:
    return isinstance(value, Mapping) and all(map(_text, value.values()))


def _fields(**shapes: Shape) -> Shape:
    return lambda value: (
        isinstance(value, Mapping) and all(name in value and shape(value[name]) for name, shape in shapes.items())
    )


def _tables(value: Any) -> bool:
    return _tables_of(value, lambda uri: kind_in(uri.partition("/")[0]) is not None)


def _tables_of(value: Any, known: Callable[[str], bool]) -> bool:
    return isinstance(value, Mapping) and all(
        known(name) and type(txid) is int and -1 <= txid < _MOST for name, txid in value.items()
    )


def _dropped(value: Any) -> bool:
    """Validate the record of dropped tables in the first format; `Dropped.from_json` rejects newer formats."""
    first = _fields(version=_number, tables=_tables, sources=lambda sources: _tables_of(sources, lambda name: True))
    return first(value) or (_fields(version=_number)(value) and value["version"] > 1)


def _meta(value: Any) -> bool:
    fields = _fields(document=_document, stamp=_number)
    known = {"document", "stamp", "digests", "epoch"}
    return (
        fields(value) and value.keys() <= known and _texts(value.get("digests", {})) and _number(value.get("epoch", 0))
    )


def _document(value: Any) -> bool:
    """Validate the facts of the plan in a spout document; the spout itself interprets the rest."""
    facts = value.get("facts", {}) if isinstance(value, Mapping) else {}
    shapes: dict[str, Shape] = {
        "kind": lambda kind: kind in ("heartbeat", "end"),
        "sources": lambda sources: isinstance(sources, Mapping) and all(map(_source, sources.values())),
        "pinned": lambda pinned: isinstance(pinned, Mapping),
        "max_ends": _number,
        "clock": _clock,
        "resumes": lambda names: isinstance(names, list) and all(map(_text, names)),
        "waiting": lambda names: isinstance(names, list) and all(map(_text, names)),
    }
    return isinstance(facts, Mapping) and all(name in shapes and shapes[name](one) for name, one in facts.items())


def _source(value: Any) -> bool:
    shapes: dict[str, Shape] = {
        "partitions": lambda names: isinstance(names, list) and all(map(_text, names)),
        "caught_up": lambda known: isinstance(known, bool),
        "ended": lambda known: isinstance(known, bool),
    }
    return isinstance(value, Mapping) and all(name in shapes and shapes[name](one) for name, one in value.items())


def _origin(value: Any) -> bool:
    """Validate the record of the code's origin in the first format; `CodeOrigin.from_json` rejects other formats."""
    first = _fields(
        version=_number, target=lambda target: target is None or _text(target), place=_text, directory=_text
    )
    seed = _fields(seed=_text, probe=lambda probe: type(probe) is int, python=_text)
    seeded = not isinstance(value, Mapping) or "hash_seed" not in value or seed(value["hash_seed"])
    return (first(value) and seeded) or (_fields(version=_number)(value) and value["version"] > 1)


def _clock(value: Any) -> bool:
    return isinstance(value, Mapping) and all(type(one) is int for one in value.values())


_ROW = _fields(timeline=_number, txid=_number, attempt=_number, stamp=_number, first=_number, last=_number)
_SHAPES: dict[str, tuple[Shape, str]] = {
    names.CURRTX: (_number, "a txid"),
    names.EPOCH: (_number, "a number"),
    names.KEPT: (_number, "a txid"),
    names.IDENTITY: (
        _fields(topology=_text, incarnation=_text, timeline=_number, fingerprint=_text),
        "topology, incarnation, timeline and fingerprint",
    ),
    names.ORIGIN: (_origin, "where the code is"),
    names.STATUS: (lambda value: isinstance(value, Mapping), "what a run tells of itself"),
    names.MODE: (_fields(active=lambda active: isinstance(active, bool)), "whether it is active"),
    names.TABLES: (_tables, "tables with their txids"),
    names.DROPPED: (_dropped, "dropped tables and sources with their last txids"),
    names.META: (_meta, "document, stamp and digests of a batch"),
    names.HISTORY: (lambda value: isinstance(value, list) and all(map(_ROW, value)), "rows of the history"),
    names.FAILURES: (_fields(count=_number), "a count and a cause"),
    names.WANTED: (
        _fields(version=_number, clock=_clock, name=_text, number=_number, since=_number),
        "the clock that is wanted",
    ),
    names.NUMBER: (_number, "the number of a snapshot"),
}


def checked(path: str, value: Any) -> Any:
    """Return `value`, read from `path`; raise `LedgerCorrupt` unless it has the structure that txstorm stores there."""
    shape, what = _SHAPES.get(path) or _SHAPES.get(path.rpartition("/")[0]) or (lambda value: True, "")
    if not shape(value):
        raise _corrupt(path, what, repr(value)[:80])
    return value


def txid_of(parent: str, name: str) -> int:
    """Parse the `name` of an entry below `parent` as a txid; raise `LedgerCorrupt` if it is not one."""
    if not (name.isascii() and name.isdecimal()):
        raise _corrupt(f"{parent}/{name}", "an entry named after a txid", repr(name)[:80])
    return int(name)


def _corrupt(path: str, expected: str, found: str) -> LedgerCorrupt:
    return LedgerCorrupt(
        f"ledger entry {path}: expected {expected}, got {found}; restore the ledger from a backup together with the "
        "tables, or move it away and rebuild it from them: txstorm recover"
    )


DROPPED_VERSION = 1
_NOTHING_READ: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class Identity:
    """Identity of the topology that owns a ledger.

    Attributes:
        topology: the topology's id.
        incarnation: a UUID generated at the first run, also recorded in every table.
        timeline: the number of rewinds; transactions are ordered by (timeline, txid).
        fingerprint: digest of the graph's shape at the last run.
    """

    topology: str
    incarnation: str
    timeline: int = 0
    fingerprint: str = ""


class Meta(NamedTuple):
    """Stored metadata of a planned txid.

    Attributes:
        document: the spout document, which determines the batch.
        stamp: processing time, UTC microseconds.
        digests: source partition → digest of the records read; empty until they are read.
        epoch: epoch of the coordinator that planned the txid; 0: unknown.
    """

    document: Any
    stamp: int
    digests: Mapping[str, str] = _NOTHING_READ
    epoch: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the metadata as JSON values; the document is not copied, since it is written immediately."""
        stored = {"document": self.document, "stamp": self.stamp, "digests": dict(self.digests)}
        return {**stored, "epoch": self.epoch} if self.epoch else stored


def clock_of(document: Any) -> Clock | None:
    """Return the clock recorded in a spout document, without the topology's code; None if its source has none.

    A transaction that was committed before txstorm recorded clocks has none, and so has a `document` of None.
    """
    found = document.get("facts", {}).get("clock") if document is not None and isinstance(document, Mapping) else None
    return None if found is None else Clock(found)


class LedgerPosition(NamedTuple):
    """Progress of a topology according to its ledger.

    Attributes:
        currtx: the next txid to commit.
        tables: table → its last published txid, as of the last completed group.
        intents: all stored intents, in txid order.
    """

    currtx: int
    tables: Mapping[str, int]
    intents: Sequence[Intent]

    @property
    def live(self) -> list[Intent]:
        """The intents of decided groups that are not completed yet."""
        return [intent for intent in self.intents if intent.last >= self.currtx]


class Dropped(NamedTuple):
    """Tables and sources that an operator dropped by name, each with the last txid for which it is complete.

    Attributes:
        tables: states (by their recorded table), sinks, maps and outlets.
        sources: sources of a composite spout; their positions stay in the spout documents.
    """

    tables: Mapping[str, int] = MappingProxyType({})
    sources: Mapping[str, int] = MappingProxyType({})

    def to_json(self) -> dict[str, Any]:
        """Return the dropped tables and sources as JSON values, with the version of the format."""
        return {"version": DROPPED_VERSION, "tables": dict(self.tables), "sources": dict(self.sources)}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Dropped:
        """Read the result of `to_json`; raise `DataDirectoryError` if a newer txstorm wrote it."""
        if found["version"] > DROPPED_VERSION:
            raise DataDirectoryError(
                f"dropped tables: format version {found['version']} is newer than {DROPPED_VERSION}, which this "
                "txstorm reads; upgrade it"
            )
        return cls(found["tables"], found["sources"])

    def until(self, txid: int) -> Dropped:
        """Return the dropped tables and sources as of a rewind to `txid`, which cannot roll back maps and outlets."""
        rewound = {uri: at if is_outside(uri) else min(at, txid) for uri, at in self.tables.items()}
        return Dropped(rewound, {name: min(at, txid) for name, at in self.sources.items()})


def with_digests(meta: Meta, document: Any, digests: Mapping[str, str]) -> Meta:
    """Return `meta` with the actual extents and digests, known once its batch has been read."""
    return Meta(document, meta.stamp, dict(digests), meta.epoch)
