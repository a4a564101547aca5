"""Look-up bolt: pins the version of a Delta table for each transaction, and joins tuples with its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from txstorm.api.attempt import EPOCH_BITS, TransactionAttempt
from txstorm.api.bolt import BatchBolt
from txstorm.api.context import TaskContext
from txstorm.api.names import near
from txstorm.api.output import Collector, OutputFieldsDeclarer
from txstorm.api.tuples import Tuple
from txstorm.clients.external_table import ExternalTable
from txstorm.errors import StateError
from txstorm.joins.lookup.lookup_table import Content, LookupTable, check_id, kind_of, lookup_table
from txstorm.joins.selection import LEFT, Selected
from txstorm.row_order import Numbers
from txstorm.windows.aggregates.groups import taken, whole

TABLE = "table"
"""The other side of a look-up join than the left stream."""


@dataclass(frozen=True)
class LookupPlan:
    """Plan of a look-up join in its topology.

    Attributes:
        id: the component's id.
        uri: the table's directory.
        on: field of the left stream → column of the table.
        kinds: the kind of values of each of these columns.
        how: the type of the join.
        wanted: the fields of the results.
        refresh: time between two looks for a newer version, in microseconds.
        left_fields: the fields of the left stream.
        first: the version when the topology was built, as it would be pinned.
    """

    id: str
    uri: str
    on: Mapping[str, str]
    kinds: tuple[str | None, ...]
    how: str
    wanted: tuple[Selected, ...]
    refresh: int
    left_fields: tuple[str, ...]
    first: Mapping[str, Any]

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the table that are needed."""
        selected = (one.field for one in self.wanted if one.side == TABLE)
        return tuple(dict.fromkeys((*self.on.values(), *selected)))

    def newest(self, known: Mapping[str, Any] | None) -> ExternalTable:
        """Return the newest version of the table; raise `StateError` if it cannot follow the version that is known."""
        table = ExternalTable(Path(self.uri))
        if known is not None and table.id != known["id"] and not _has_had(self.uri, known):
            check_id(table, self.uri, known["id"])
        for name in self.columns:
            if name not in table.schema.names:
                columns = table.schema.names
                raise StateError(
                    f"version {table.version} of the table {self.uri} has no column {name!r}{near(name, columns)}, "
                    f"which the join needs; it has {', '.join(columns)}: add it, or select other columns"
                )
        kinds = tuple(kind_of(table.schema.field(name).type) for name in self.on.values())
        if kinds != self.kinds:
            raise StateError(
                f"version {table.version} of the table {self.uri} has other types of {', '.join(self.on.values())} "
                f"than when the topology was built: expected {self.kinds}, got {kinds}; change them back, or restart"
            )
        return table


class Lookup(BatchBolt):
    """Batch bolt that takes the place of a `LookupJoin`."""

    def __init__(self, plan: LookupPlan) -> None:
        self.plan = plan

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        """Declare the fields of the results."""
        if self.plan.wanted:
            declarer.declare([one.name for one in self.plan.wanted])

    def pin(self, context: TaskContext, previous: Any) -> dict[str, Any]:
        """Return the version of the table that a transaction sees: the newest, looked for at every refresh.

        If the table cannot follow its earlier version, that version stays, with the reason, and the tasks look at the
        table themselves: what is wrong may have been mended when the transaction is processed.
        """
        plan = self.plan
        known = previous if isinstance(previous, dict) and previous.get("uri") == plan.uri else None
        if known is not None and "doubt" not in known and context.stamp - known["at"] < plan.refresh:
            return known
        try:
            table = plan.newest(known)
        except StateError as error:
            return {**(known or plan.first), "at": context.stamp, "doubt": str(error)}
        return {"uri": plan.uri, "id": table.id, "version": table.version, "at": context.stamp}

    def prepare(self, context: TaskContext, collector: Collector, attempt: TransactionAttempt) -> None:
        """Set up for one batch."""
        self._context, self._collector, self._attempt = context, collector, attempt
        self._rows: list[tuple[Any, ...]] = []
        self._loaded: LookupTable | None = None

    def execute(self, tuple: Tuple) -> None:  # noqa: A002 - Storm's word
        """Take one tuple; called only if a value has no Arrow type."""
        self._rows.append(tuple.values)

    def execute_batch(self, batch: Any) -> None:
        """Join a record batch, and emit the results."""
        self._flush()
        names = list(self.plan.on)
        left, right = self._joined([batch.column(name) for name in names], names, batch.num_rows)
        made = [
            taken(batch.column(one.field), left) if one.side == LEFT else self._of_table(one.field, right)
            for one in self.plan.wanted
        ]
        if len(left):
            self._collector.emit_batch(pa.table(made, names=[one.name for one in self.plan.wanted]))

    def finish_batch(self) -> None:
        """Join the tuples that have no Arrow type."""
        self._flush()

    def _flush(self) -> None:
        rows, self._rows = self._rows, []
        if not rows:
            return
        plan = self.plan
        values = dict(zip(plan.left_fields, zip(*rows, strict=True), strict=True))
        keys = [self._table.key_column(name, values[name], own) for name, own in plan.on.items()]
        left, right = self._joined(keys, list(plan.on), len(rows))
        made = [
            [values[one.field][row] for row in left.tolist()]
            if one.side == LEFT
            else self._of_table(one.field, right).to_pylist()
            for one in plan.wanted
        ]
        for row in zip(*made, strict=True):
            self._collector.emit(*row)

    def _joined(self, keys: Sequence[pa.Array], names: Sequence[str], number: int) -> tuple[Numbers, Numbers]:
        """Return the indices of the rows of the stream and of the table that each result consists of."""
        if not number:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        left, right = self._table.find(keys, names)
        if self.plan.how == "inner":
            return left, right
        there = np.zeros(number, bool)
        there[left] = True
        if self.plan.how == "left":
            if there.all():
                return left, right
            alone = np.flatnonzero(~there)
            order = np.argsort(np.concatenate([left, alone]), kind="stable")
            right = np.concatenate([right, np.full(len(alone), -1)])
            return np.concatenate([left, alone])[order], right[order]
        chosen = np.flatnonzero(there if self.plan.how == "semi" else ~there)
        return chosen, np.full(len(chosen), -1)

    def _of_table(self, column: str, rows: Numbers) -> pa.Array:
        return taken(whole(self._table.rows.column(column)), rows)

    @property
    def _table(self) -> LookupTable:
        """The table at the version that is pinned for this transaction."""
        if self._loaded is None:
            plan = self.plan
            pinned = self._context.pinned or plan.first
            if "doubt" in pinned:
                plan.newest(pinned)
            run = self._attempt.attempt_id >> EPOCH_BITS
            where = pinned["uri"], pinned["id"], pinned["version"]
            content = Content(run, *where, tuple(plan.on.values()), plan.columns)
            self._loaded = lookup_table(content)
        return self._loaded


def _has_had(uri: str, known: Mapping[str, Any]) -> bool:
    """Return whether the table still has a version that was pinned: its id changes when it is defined anew (SQL)."""
    try:
        return bool(ExternalTable(Path(uri), known["version"]).id == known["id"])
    except StateError:
        return False
