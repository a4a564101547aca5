"""What the values of a ledger look like: JSON that was edited by hand, or damaged where nothing has checksums, is told.

ZooKeeper and Delta keep values as they are given; only SQLite's file has checksums of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from txstorm.errors import LedgerCorrupt
from txstorm.ledger import paths as names
from txstorm.storage.tables.intent import DIRECTORIES

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
    known = set(DIRECTORIES.values())
    return _tables_of(value, lambda uri: uri.partition("/")[0] in known)


def _tables_of(value: Any, known: Callable[[str], bool]) -> bool:
    return isinstance(value, Mapping) and all(
        known(name) and type(txid) is int and -1 <= txid < _MOST for name, txid in value.items()
    )


def _dropped(value: Any) -> bool:
    """Of the first format; `Dropped.from_json` refuses newer ones."""
    first = _fields(version=_number, tables=_tables, sources=lambda sources: _tables_of(sources, lambda name: True))
    return first(value) or (_fields(version=_number)(value) and value["version"] > 1)


def _meta(value: Any) -> bool:
    fields = _fields(document=lambda document: True, stamp=_number)
    return fields(value) and value.keys() <= {"document", "stamp", "digests"} and _texts(value.get("digests", {}))


def _origin(value: Any) -> bool:
    """Of the first format; `Origin.from_json` says of others that they are newer."""
    first = _fields(
        version=_number, target=lambda target: target is None or _text(target), place=_text, directory=_text
    )
    seed = _fields(seed=_text, probe=lambda probe: type(probe) is int, python=_text)
    seeded = not isinstance(value, Mapping) or "hash_seed" not in value or seed(value["hash_seed"])
    return (first(value) and seeded) or (_fields(version=_number)(value) and value["version"] > 1)


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
}


def checked(path: str, value: Any) -> Any:
    """`value`, which stands at `path`; raises `LedgerCorrupt` where it is something else than txstorm puts there."""
    shape, what = _SHAPES.get(path) or _SHAPES.get(path.rpartition("/")[0]) or (lambda value: True, "")
    if not shape(value):
        raise _corrupt(path, what, repr(value)[:80])
    return value


def txid_of(parent: str, name: str) -> int:
    """The txid that an entry below `parent` is named after; raises `LedgerCorrupt` where it is named otherwise."""
    if not (name.isascii() and name.isdecimal()):
        raise _corrupt(f"{parent}/{name}", "an entry named after a txid", repr(name)[:80])
    return int(name)


def _corrupt(path: str, expected: str, found: str) -> LedgerCorrupt:
    return LedgerCorrupt(
        f"ledger entry {path}: expected {expected}, got {found}; restore the ledger from a backup together with the "
        "tables, or move it away and rebuild it from them: txstorm recover"
    )
