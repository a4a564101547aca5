"""Change rows of collections: the combined writes of the tasks of a txid, as rows of ``changes/<name>``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from txstorm.keys import groups_of
from txstorm.state.index.collection_index import PublishedRows, RowForm
from txstorm.state.index.sorted_rows import ALL, Found, Owners, SortedRows, sorted_places
from txstorm.storage.rows.eviction import NO_BOUND, Numbers, Tombstones, words
from txstorm.storage.rows.schema import (
    COUNT_BITS,
    EVICTED,
    EVICTED_ALL,
    KEY_GROUP,
    OP,
    PLACE,
    PREV,
    REMOVED,
    SEQUENCE,
    TOMBSTONE,
    TXID,
    UPDATED,
)
from txstorm.typed import restored


def combined(txid: int, parts: Sequence[PublishedRows], known: int, bound: int) -> PublishedRows | None:
    """Combine the writes of the tasks in `txid`, without rows that it has removed or evicted; None if none are left.

    Args:
        txid: the transaction.
        parts: the writes of each task; rows that were removed may be among those appended.
        known: the bound of all collections before the txid.
        bound: the bound that the tasks have given; `NO_BOUND` if there is none.
    """
    valid = max(known, bound)
    rows, removed, tombstones = (joined_blocks([getattr(part, name) for part in parts])
                                 for name in ("rows", "removed", "tombstones"))  # fmt: skip
    if removed is not None and rows is not None:  # appended and then removed in the same txid: no change
        rows = _without(rows, removed)
    if removed is not None:
        removed = removed.taken(removed.numbers < txid << COUNT_BITS)
    if tombstones is not None:
        tombstones = tombstones.taken(tombstones.orders > valid)
        rows = None if rows is None else _uncut(rows, tombstones)
    if rows is not None and rows.least < valid:
        rows = rows.taken(rows.orders >= valid)
    rows, removed, tombstones = (one if one is not None and len(one) else None for one in (rows, removed, tombstones))
    if rows is removed is tombstones is None and bound <= known:
        return None
    return PublishedRows(rows, removed, tombstones, bound if bound > known else NO_BOUND)


class ChangeRows:
    """Converter from the changes of a txid to rows of the changes table.

    Args:
        form: the converter for keys and values.
        schema: the schema of the changes table.
    """

    def __init__(self, form: RowForm, schema: pa.Schema) -> None:
        self._form, self._schema = form, schema
        self._order = form.keys.columns[-PLACE]

    def table(self, txid: int, changes: PublishedRows) -> pa.Table:
        """Build the change rows of `txid`, sorted by key group, then by key, None first."""
        form = self._form
        parts = [(op, block) for op, block in ((UPDATED, changes.rows), (REMOVED, changes.removed),
                                               (EVICTED, changes.tombstones)) if block is not None]  # fmt: skip
        tables = [] if changes.bound == NO_BOUND else [self._bound_row(txid, changes.bound)]
        if len(parts) == 1:
            ((op, block),) = parts
            rows = block.by_owner(block.keys.sorted(form.names))
            tables.append(self._part(txid, op, rows, block.keys, rows.owners))
        elif parts:
            owners = Owners.united([block.keys for _, block in parts], form.names, form.no_keys)
            owners = owners.taken(owners.sorted(form.names))
            coded = [(op, block, owners.numbers_of(block.keys)[block.owner_numbers]) for op, block in parts]
            made = [self._part(txid, op, block.rows, owners, codes) for op, block, codes in coded]
            tables.append(_arranged(np.concatenate([codes for *_, codes in coded]), pa.concat_tables(made)))
        return restored(pa.concat_tables(tables).select(self._schema.names), self._schema)

    def _part(self, txid: int, op: str, block: Found, owners: Owners, codes: Numbers) -> pa.Table:
        """Return the change rows of the rows of `block`; `codes`: the number of each row's collection in `owners`."""
        numbers, count = block.numbers if op != EVICTED else np.full(len(block), TOMBSTONE), len(block)
        picked, struct = pa.array(codes), self._schema.field(PREV).type
        nothing = [pa.nulls(count, column.field.type) for column in self._form.values.stored]
        prev = pa.nulls(count, struct)
        if op == REMOVED:
            prev = pa.StructArray.from_arrays(list(block.values), fields=list(struct))
        groups = groups_of(owners.hashes).astype(np.int32)[codes]
        columns = {
            **dict(zip(self._form.names, (column.take(picked) for column in owners.keys), strict=True)),
            self._order.name: self._orders(block.orders),
            SEQUENCE.name: pa.array(numbers, SEQUENCE.type),
            **dict(zip((column.name for column in self._form.values.stored), block.values if op == UPDATED else nothing,
                       strict=True)),
            TXID.name: pa.repeat(pa.scalar(txid, TXID.type), count),
            PREV: prev,
            OP.name: pa.repeat(pa.scalar(op, OP.type), count),
            KEY_GROUP.name: pa.array(groups, KEY_GROUP.type),
        }  # fmt: skip
        return pa.table([columns[name] for name in self._schema.names], schema=self._schema)

    def _bound_row(self, txid: int, bound: int) -> pa.Table:
        """Return the change row of the bound of all collections."""
        row = {name: [None] for name in self._schema.names}
        row |= {SEQUENCE.name: [TOMBSTONE], TXID.name: [txid], OP.name: [EVICTED_ALL], KEY_GROUP.name: [0]}
        columns = {name: pa.array(cells, self._schema.field(name).type) for name, cells in row.items()}
        columns[self._order.name] = self._orders(np.array([bound]))
        return pa.table([columns[name] for name in self._schema.names], schema=self._schema)

    def _orders(self, orders: Numbers) -> pa.Array:
        return restored(pa.array(orders), self._order.field.type)


def joined_blocks(blocks: Sequence[SortedRows | None]) -> SortedRows | None:
    """Merge those of `blocks` that there are into one; None if there are none."""
    there = [block for block in blocks if block is not None]
    return SortedRows.joined(there) if there else None


def _without(rows: SortedRows, removed: SortedRows) -> SortedRows:
    """Drop the rows that are among the `removed` ones."""
    gone = removed.find(rows.keys, ALL)
    own = Found(rows.owner_numbers, rows.orders, rows.numbers, [pa.array(np.arange(len(rows)))])
    return rows.taken(np.asarray(own.without(gone).values[0]))


def _uncut(rows: SortedRows, tombstones: SortedRows) -> SortedRows:
    """Drop the rows that `tombstones` remove."""
    cuts = tombstones.find(rows.keys, ALL)
    hidden = Tombstones(cuts.owners, cuts.orders, cuts.numbers).hide(rows.owner_numbers, rows.orders, rows.numbers)
    return rows.taken(~hidden) if hidden.any() else rows


def _arranged(codes: Numbers, table: pa.Table) -> pa.Table:
    """Sort change rows by their collections, given by number, then by order and sequence number."""
    orders, numbers = (words(table[table.column_names.index(SEQUENCE.name) + i]) for i in (-1, 0))
    turn = sorted_places(codes, orders, numbers)
    return table if (turn[1:] > turn[:-1]).all() else table.take(pa.array(turn))
