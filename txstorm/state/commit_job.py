"""Rows shipped to one task of a commit job: the values, before this txid, of the keys in its input."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from txstorm.api.state import KeyedState
from txstorm.errors import StateError
from txstorm.misfits import shown
from txstorm.state.keyed import StateGroup
from txstorm.storage.rows.forms import Key, KeyForm, ValueForm
from txstorm.storage.rows.update_rules import Stored

_THERE = "_there"


def input_keys(state: KeyedState, batches: Iterable[pa.RecordBatch], where: str) -> list[Key]:
    """Collect the distinct keys of `state` in `batches`, which have columns with the names of the key columns.

    Raises:
        StateError: the type of a column is incompatible with that of the key column.
    """
    form = KeyForm(state)
    parts = []
    for batch in batches:
        columns = [column.conformed(pa.chunked_array([batch.column(column.name)]), where) for column in form.columns]
        parts.append(_each_once(pa.table(columns, names=form.names)))
    return form.of_table(_each_once(pa.concat_tables(parts))) if parts else []


def given_rows(group: StateGroup, keys: Sequence[Key], txid: int) -> pa.Table:
    """Read the values of `keys` before `txid`, with a flag for keys that have one.

    Call in the txid's turn, on the commit thread.
    """
    values = group.before(keys, txid)
    there = pa.array([value is not None for value in values], pa.bool_())
    columns = [*group.keys.arrays(keys), *group.values.arrays(values), there]
    names = [*group.keys.names, *(column.name for column in group.values.stored), _THERE]
    return pa.table(columns, names=names)


def write_given(rows: pa.Table, file: Path) -> None:
    """Write the result of `given_rows` to a new file, to be read by another process."""
    with pa.OSFile(os.fspath(file), "wb") as sink, pa.ipc.new_file(sink, rows.schema) as writer:
        writer.write_table(rows)


class ShippedRowsIndex:
    """`txstorm.state.index.index.KeyIndex` of a commit-job task; it contains only the rows of the keys in its input.

    Args:
        state: the state.
        file: the file written by `write_given`.
        where: the task and txid, for error messages.
    """

    last_txid = 0

    def __init__(self, state: KeyedState, file: Path, where: str) -> None:
        self._name, self._where = state.name, where
        with pa.memory_map(os.fspath(file)) as source:
            table = pa.ipc.open_file(source).read_all()
        keys, values = KeyForm(state).of_table(table), ValueForm(state).of_table(table)
        rows = zip(keys, values, table[_THERE].to_pylist(), strict=True)
        # The txid of a row does not matter, as it precedes that of the commit.
        self._rows: dict[Key, Stored | None] = {key: (value, 0, None) if there else None for key, value, there in rows}

    def rows(self, keys: Sequence[Key], *, keep: bool = True) -> list[Stored | None]:
        """Return the row of each of `keys`; None for a key without a row.

        Raises:
            StateError: a key is not in the task's input.
        """
        try:
            return [self._rows[key] for key in keys]
        except KeyError:
            strange = next(key for key in keys if key not in self._rows)
        raise StateError(
            f"state {self._name!r}, {self._where}: key {shown(strange)} is not in the task's input of this large "
            "transaction, which is committed by a job whose tasks are given the rows of their input's keys only; read "
            "and write keys of the input, or have it committed in the driver with large_commit_rows=none and "
            "large_commit_bytes=none"
        )

    def everything(self) -> Mapping[Key, Stored]:
        """Raise `StateError`: a task of a commit job has not all rows."""
        msg = f"state {self._name!r}, {self._where}: a large transaction cannot iterate over the whole state"
        raise StateError(msg)

    def apply(self, changed: Mapping[Key, Stored], removed: Sequence[Key], last: int) -> None:
        """Do nothing: the task's writes are added to the driver's index once they are published."""


def _each_once(table: pa.Table) -> pa.Table:
    return table.group_by(table.column_names).aggregate([])
