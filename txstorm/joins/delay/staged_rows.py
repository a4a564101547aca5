"""Staged store rows: what a feed puts after its transactions are decided, and look-ups that already see these rows.

A feed stages the tuples of its side as columns; `StoreRow` objects are made of them when they are put or looked up.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from txstorm.api.join_store import JoinStore, StoreRow, StoreUse
from txstorm.keys import plain
from txstorm.state.external.mark_rules import Replayed
from txstorm.storage.rows.schema import TXID
from txstorm.storage.tables.staging import is_kept
from txstorm.tagged import text_of, value_of
from txstorm.windows.rules.event_time import Times

TIME, TASK, TEXT = "time", "task", "values"
"""Columns of staged rows beside the fields: time, task, and the values as text if they have no common Arrow type."""
FIELD = "field "
"""Prefix of the columns of fields."""
ABOUT = b"txstorm-store-rows"
"""Key of the metadata of staged rows: the fields, those of the key, and the one of the id, as JSON."""
EXPIRY = -1
"""The task of a row that is none: its time is that below which rows expire."""
Puts = tuple[Sequence[Sequence[StoreRow]], int | None]
"""What publishing does to a store: the rows of each request, and the time below which rows expire."""
NO_ROWS = pa.schema([pa.field(TIME, pa.int64()), pa.field(TASK, pa.int64()), TXID])


class RowForm:
    """Form of the rows of a side: its fields, and which of them are the key and the id."""

    def __init__(self, fields: Sequence[str], key: Sequence[str], id: str) -> None:
        self.fields, self.key, self.id = tuple(fields), tuple(key), id

    def metadata(self) -> dict[bytes, bytes]:
        """Return the form as metadata of a table."""
        return {ABOUT: json.dumps({"fields": self.fields, "key": self.key, "id": self.id}).encode()}

    @classmethod
    def of(cls, schema: pa.Schema) -> RowForm | None:
        """Return the form of the rows of a table; None if it has no rows but expiries."""
        text = (schema.metadata or {}).get(ABOUT)
        return None if text is None else cls(**json.loads(text))

    def staged(self, values: pa.RecordBatch | list[tuple[Any, ...]], times: Times) -> pa.Table:
        """Return tuples with their times as a table; as text if they are a list, or have no columns that keep them."""
        columns: dict[str, Any] = {TIME: pa.array(times, pa.int64())}
        if isinstance(values, list):
            columns[TEXT] = pa.array([text_of(list(row), "of a row for a store") for row in values], pa.string())
        else:
            columns.update((f"{FIELD}{name}", values.column(name)) for name in self.fields)
        table = pa.table(columns).replace_schema_metadata(self.metadata())
        return table if is_kept(table.schema) else self.as_text(table)

    def as_text(self, table: pa.Table) -> pa.Table:
        """Return staged rows with their values as text."""
        if TEXT in table.column_names:
            return table
        lists = [table.column(f"{FIELD}{name}").to_pylist() for name in self.fields]
        rows = zip(*lists, strict=True)
        text = pa.array([text_of(list(row), "of a row for a store") for row in rows], pa.string())
        others = [name for name in table.column_names if not name.startswith(FIELD)]
        return table.select(others).append_column(TEXT, text)

    def rows(self, table: pa.Table) -> list[StoreRow]:
        """Return the rows of a table."""
        if TEXT in table.column_names:
            values = [value_of(text) for text in table.column(TEXT).to_pylist()]
        else:
            columns = [table.column(f"{FIELD}{name}").to_pylist() for name in self.fields]
            values = list(zip(*columns, strict=True))
        fields, id_at = self.fields, self.fields.index(self.id)
        key_at = [fields.index(name) for name in self.key]
        times = table.column(TIME).to_pylist()
        if len(key_at) == 1:
            at = key_at[0]
            return [
                StoreRow(row[at], row[id_at], time, dict(zip(fields, row, strict=True)))
                for row, time in zip(values, times, strict=True)
            ]
        return [
            StoreRow(tuple(row[at] for at in key_at), row[id_at], time, dict(zip(fields, row, strict=True)))
            for row, time in zip(values, times, strict=True)
        ]


class TaskFeed:
    """Handle of one task of a feed in one txid.

    Attributes:
        active: whether `finish_batch` of the task is running; set by the commit runner.
        task: the index of the task.
        tables: the rows, in order of arrival.
        expiry: the time below which rows expire once the txid is published; None: unchanged.
        hidden: the time below which look-ups of this txid see no row, since an earlier one has expired it.
    """

    def __init__(self, use: StoreUse, task: int) -> None:
        self.active = False
        self.task = task
        self.tables: list[pa.Table] = []
        self.expiry: int | None = None
        self.hidden: int | None = None
        self._use = use
        self._made: list[list[StoreRow]] = []

    def put(self, form: RowForm, rows: pa.Table) -> None:
        """Stage rows; raise `StateError` for one that the store can never hold."""
        self.tables.append(rows)
        check = getattr(self._use.store, "check_rows", None)
        if check is not None and getattr(check, "__func__", None) is not JoinStore.check_rows:
            with Replayed(f"store of {self._use.name!r}: rows cannot be checked"):
                made = form.rows(rows)
                check(made)
            self._made.append(made)

    @cached_property
    def rows(self) -> list[StoreRow]:
        """The rows, in order of arrival; read once all are there."""
        made = self._made if len(self._made) == len(self.tables) else [rows_of(table) for table in self.tables]
        return made[0] if len(made) == 1 else [row for some in made for row in some]

    @cached_property
    def by_key(self) -> dict[Any, list[StoreRow]]:
        """The rows by the one form of equal keys, as Python compares them; read once all are there."""
        found: dict[Any, list[StoreRow]] = {}
        for row in self.rows:
            found.setdefault(plain(row.key), []).append(row)
        return found


def rows_of(table: pa.Table) -> list[StoreRow]:
    """Return the rows of a staged table."""
    form = RowForm.of(table.schema)
    return [] if form is None else form.rows(table)


def rows_to_stage(ended: Sequence[tuple[int, Sequence[TaskFeed]]]) -> pa.Table | None:
    """Return the rows of the feeds of consecutive txids, and what expires with them; None if nothing."""
    found, expiry = [], None
    for txid, feeds in ended:
        for feed in feeds:
            found += [_of_task(table, feed.task, txid) for table in feed.tables if table.num_rows]
            expiry = feed.expiry if feed.expiry is not None else expiry
    if expiry is not None:
        row = {TIME: pa.array([expiry]), TASK: pa.array([EXPIRY]), TXID.name: pa.array([ended[-1][0]], TXID.type)}
        found.append(pa.table(row))
    return _together(found) if found else None


def puts_of(table: pa.Table, size: int) -> Puts:
    """Return what publishing a staged table does, in requests of at most `size` rows of one task and txid."""
    tasks = np.asarray(table.column(TASK).combine_chunks())
    expiries = table.filter(pa.array(tasks == EXPIRY)).column(TIME).to_pylist()
    table = table.filter(pa.array(tasks != EXPIRY))
    requests: list[Sequence[StoreRow]] = []
    if table.num_rows:
        rows = rows_of(table)
        tasks, txids = (np.asarray(table.column(name).combine_chunks()) for name in (TASK, TXID.name))
        cuts = np.flatnonzero((np.diff(tasks) != 0) | (np.diff(txids) != 0)) + 1
        for first, last in zip([0, *cuts.tolist()], [*cuts.tolist(), len(rows)], strict=True):
            requests += [rows[at : min(at + size, last)] for at in range(first, last, size)]
    return requests, max(expiries, default=None)


def typed_key(key: Any) -> tuple[Any, Any]:
    """Return a key or id with its type, or those of its parts, so that 1, True and 1.0 differ, and equal ones not."""
    key = plain(key)
    return tuple(map(type, key)) if type(key) is tuple else type(key), key


def _of_task(table: pa.Table, task: int, txid: int) -> pa.Table:
    size = table.num_rows
    with_task = table.append_column(TASK, pa.array(np.full(size, task, np.int64)))
    return with_task.append_column(TXID.name, pa.array(np.full(size, txid, np.int64)).cast(TXID.type))


def _together(tables: Sequence[pa.Table]) -> pa.Table:
    """Concatenate staged rows; as text unless their columns have the same types."""
    forms = [RowForm.of(table.schema) for table in tables]
    metadata = next((form.metadata() for form in forms if form is not None), None)
    typed = [table for table, form in zip(tables, forms, strict=True) if form is not None]
    if len({tuple(table.schema.types) for table in typed}) > 1:
        tables = [table if form is None else form.as_text(table) for table, form in zip(tables, forms, strict=True)]
    bare = [table.replace_schema_metadata(None) for table in tables]
    return pa.concat_tables(bare, promote_options="default").combine_chunks().replace_schema_metadata(metadata)
