"""Texts of keys in tables of an older txstorm: which tables have them, and the plan that rewrites them.

A table keeps the form of its texts for good, unless it is migrated. A migration is a rewind to the last transaction, by
which the tables with such texts get rewritten rows: a crash, readers and the index of a state are dealt with as there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from txstorm.books.rewind import RewoundTable
from txstorm.clients.delta.handle import DeltaHandle
from txstorm.keys import equal_id, equal_text, key_groups
from txstorm.recovery.clone import written
from txstorm.storage.rows.eviction import NO_BOUND, is_placed
from txstorm.storage.rows.schema import KEY_GROUP, PLACE, TXID, in_order
from txstorm.storage.tables.as_of import bound_as_of
from txstorm.storage.tables.directory import Directory
from txstorm.storage.tables.identity import (
    FIXED,
    FORMAT,
    FORMATS,
    KEY_TEXTS,
    TableRef,
    TopologyIdentity,
    key_names_of,
)
from txstorm.storage.tables.intent import CHANGES, STATE
from txstorm.storage.tables.rewrite import folded
from txstorm.storage.tables.table import DeltaTableState

Marker = tuple[str, int | None]
"""Column of a table with texts of keys, and the number of parts for ids."""
_OTHER = "component", "task "
"""Beginnings of names in a windowed component's records that are no texts of keys."""


class OldTexts:
    """The texts of keys of one state, in the form of an older txstorm.

    Attributes:
        name: the state.
        keys: the key columns that belong to the key itself, and not to the place of a row in its collection.
        rows: its rows as of its last transaction, with the texts in the form of today.
        clashes: keys that would become one, each as the texts that are stored.
    """

    def __init__(self, changes: DeltaTableState, kept: DeltaTableState, marker: Marker) -> None:
        self.name = kept.ref.name
        self._changes, self._kept = changes, kept
        self._column, self._parts = marker
        names = key_names_of(kept.handle.properties)
        self.keys = names[:-PLACE] if is_placed(names) else names
        as_of, last = kept.last_txid(), changes.last_txid()
        old = folded(kept.handle.read(), changes.handle.read(low=(TXID.name, as_of), high=(TXID.name, last)), names)
        self.bound = NO_BOUND
        if is_placed(names):
            self.bound = bound_as_of(kept.handle, changes.handle, as_of, last)
        texts = old[self._column].to_pylist()
        made = {text: self._equal(text) for text in dict.fromkeys(texts)}
        column = pa.array([made[text] for text in texts], pa.string())
        rows = old.set_column(old.schema.get_field_index(self._column), self._column, column)
        groups = key_groups([rows[name].combine_chunks() for name in self.keys], rows.num_rows)
        rows = rows.set_column(
            rows.schema.get_field_index(KEY_GROUP.name), KEY_GROUP.name, pa.array(groups, pa.int32())
        )
        self.rows = in_order(rows, [KEY_GROUP.name, *names])
        self.clashes = list(self._clashes(old, rows)) if self._column in self.keys else []

    def _equal(self, text: str) -> str:
        if self._parts is not None:
            return equal_id(text, self._parts)
        return text if text.startswith(_OTHER) else equal_text(text)

    def _clashes(self, old: pa.Table, new: pa.Table) -> Iterator[list[str]]:
        """Yield the different texts of each key that several keys would become."""
        keys = zip(*(new[name].to_pylist() for name in self.keys), strict=True)
        found: dict[tuple[object, ...], dict[str, None]] = {}
        for key, text in zip(keys, old[self._column].to_pylist(), strict=True):
            found.setdefault(key, {})[text] = None
        yield from (sorted(texts) for texts in found.values() if len(texts) > 1)

    def planned(self, ref: TableRef, txid: int, epoch: int, now: int) -> RewoundTable:
        """Stage the rows of one of the two tables of the state; return what a rewind to the last `txid` does to it."""
        table = self._kept if ref.kind == STATE else self._changes
        adds = tuple(written(table.path, self.rows, epoch, now, KEY_GROUP.name)) if ref.kind == STATE else ()
        removes = tuple(sorted(file.path for file in table.handle.files()))
        properties = {FORMAT: FORMATS[-1], KEY_TEXTS: json.dumps([self._column, self._parts])}
        floor = txid if ref.kind == CHANGES else None
        bound = self.bound if ref.kind == STATE and self.bound > NO_BOUND else None
        return RewoundTable(ref.uri, txid, removes, adds, bound, floor, properties)


def old_texts(place: Directory, owner: TopologyIdentity, refs: Sequence[TableRef]) -> tuple[list[OldTexts], list[str]]:
    """Read the states with texts of keys in an older form; also return those of which that cannot be known.

    The state of a stateful bolt has no sign of it before a start of this version.
    """
    opened = (place.table(owner, ref) for ref in refs if ref.kind == CHANGES)
    tables = [(one, _marker(one.handle)) for one in opened if one.until() is None]
    old = [one for one, _ in tables if one.handle.properties.get(FORMAT) == FORMATS[0]]
    marked = {_component(one.ref.name) for one, marker in tables if one in old and marker is not None}
    found = [
        # All tables of a component have texts in the form of its oldest one.
        OldTexts(one, place.table(owner, TableRef(STATE, one.ref.name)), marker)
        for one, marker in tables
        if marker is not None and _component(one.ref.name) in marked
    ]
    unmarked = [one for one, marker in tables if one in old and marker is None]
    unknown = [
        one.ref.name
        for one in unmarked
        if key_names_of(one.handle.properties)[-1:] == ["key"] and "value" in one.handle.schema.names
    ]
    return found, unknown


def _component(state: str) -> str:
    for part in ("-progress", "-tuples", "-due"):
        state = state.removesuffix(part)
    return state


def _marker(table: DeltaHandle) -> Marker | None:
    """Return where a table has texts of keys; None if it has none, or that is not known."""
    properties: Mapping[str, str] = table.properties
    if KEY_TEXTS in properties:
        column, parts = json.loads(properties[KEY_TEXTS])
        return column, parts
    keys, fixed = key_names_of(properties), json.loads(properties.get(FIXED, "{}"))
    if "window_unit" in table.schema.names and keys[0] in ("window_unit", "queue"):
        return "window_unit", None
    if keys == ["unit"] and fixed.get("key", "none") != "none" and "columns" not in fixed:
        return "unit", None
    if keys[:1] == ["id"] and set(fixed) == {"id"}:
        return "id", len(fixed["id"].split(", "))
    return None
