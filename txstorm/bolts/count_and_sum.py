"""Ready-made committers that keep a count or a sum per key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from txstorm.api.attempt import TransactionAttempt
from txstorm.api.bolt import BatchBolt, Committer
from txstorm.api.context import TaskContext
from txstorm.api.output import Collector
from txstorm.api.state import CHANGES, DELTALAKE, KeyedState, StateHandle
from txstorm.errors import StateError
from txstorm.typed import stacked

Columns = str | Sequence[str] | Mapping[str, Any]


class _Folded(BatchBolt, Committer):
    """Base class of committers that fold the columns of their input into a keyed state."""

    def __init__(self, state: KeyedState, how: str) -> None:
        self.state = state
        self._how = dict.fromkeys(state.value, how)
        self.needed_types = {**state.key, **({} if how == "count" else state.value)}
        self.needed_fields = tuple(self.needed_types)

    def prepare(self, context: TaskContext, collector: Collector, attempt: TransactionAttempt) -> None:
        """Set up for one batch."""
        self._handle: StateHandle = context.state(self.state.name)
        self._batches: list[Any] = []

    def execute_batch(self, batch: Any) -> None:
        """Buffer a record batch until the txid's turn to commit."""
        self._batches.append(batch)

    def finish_batch(self) -> None:
        """Fold the buffered record batches into the state."""
        tables = list(stacked(self._batches, self.needed_fields))
        for table in tables:
            try:
                self._handle.merge(table, self._how)
            except StateError as error:
                error.rows = error.rows if len(tables) == 1 else ()  # else they are no rows of the input
                raise


class CountByKey(_Folded):
    """Committer that counts tuples per key, exactly once, in the state `table`.

    Example::

        builder.set_bolt("counts", CountByKey("word", table="counts"), 2).fields_grouping("split", ["word"])

    Args:
        key: the field or fields that make up the key: strings, or a mapping field → type.
        table: name of the state.
        count: name of the state's value column, an int.
        ttl, layout, writer: options of the state, as for `txstorm.api.state.KeyedState`. With a `ttl`, the count of
            a key that does not occur for that long restarts at 0.
    """

    def __init__(
        self,
        key: Columns,
        table: str,
        *,
        count: str = "n",
        ttl: timedelta | None = None,
        layout: str = CHANGES,
        writer: str = DELTALAKE,
    ) -> None:
        super().__init__(KeyedState(table, _typed(key, str), {count: int}, ttl, layout, writer), "count")


class SumByKey(_Folded):
    """Committer that sums fields per key, exactly once, in the state `table`; values of None are ignored.

    Example::

        builder.set_bolt("sales", SumByKey("shop", {"amount": Decimal}, "sales")).fields_grouping("orders", ["shop"])

    Args:
        key: as for `CountByKey`.
        value: the field or fields to sum: names of fields of type int, or a mapping field → type.
        table: name of the state; its value columns have the names of the fields.
        ttl, layout, writer: as for `CountByKey`.
    """

    def __init__(
        self,
        key: Columns,
        value: Columns,
        table: str,
        *,
        ttl: timedelta | None = None,
        layout: str = CHANGES,
        writer: str = DELTALAKE,
    ) -> None:
        super().__init__(KeyedState(table, _typed(key, str), _typed(value, int), ttl, layout, writer), "sum")


def _typed(columns: Columns, kind: type) -> Mapping[str, Any]:
    if isinstance(columns, Mapping):
        return columns
    return dict.fromkeys([columns] if isinstance(columns, str) else columns, kind)
