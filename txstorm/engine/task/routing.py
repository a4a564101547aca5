"""Routing: distributes rows among the tasks of the receiving bolt, as a function of txid, source task and rows.

Equal values have equal hashes, whatever their types and the encoding of their columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from copy import deepcopy
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from txstorm import keys
from txstorm.engine.arrow import column_values, is_tagged_column, rows_of_batch
from txstorm.engine.task.collector import Emitted
from txstorm.engine.task.error_rows import RAISED, At, shortened
from txstorm.errors import EmitError, StateError
from txstorm.plan.stages import Edge


def row_hashes(batch: pa.RecordBatch, columns: Iterable[int]) -> keys.Hashes:
    """Hash the values of each row in these columns; values that can be keys are hashed as by `keys.hash_values`."""
    return keys.chained([_column_hashes(batch, index) for index in columns], batch.num_rows)


def _column_hashes(batch: pa.RecordBatch, index: int) -> keys.Hashes:
    if not is_tagged_column(batch, index):
        try:
            return keys.hash_column(batch.column(index))
        except (StateError, pa.ArrowInvalid):
            pass  # lists, structs, numbers beyond 64 bits: value by value
    return np.array([_value_hash(value) for value in column_values(batch, index)], dtype=np.uint64)


def _value_hash(value: Any) -> int:
    value = keys.plain(value)
    with suppress(StateError):
        return keys.hash_value(value)
    return keys.hash_value(keys.any_text(value))  # it cannot be part of a key


Targets = npt.NDArray[np.int64]


class Router:
    """Router of the batches that one source task sends over one edge within one attempt.

    Args:
        edge: the edge.
        txid: the transaction.
        task: index of the source task.
        at: its `input` is set to the tuple for which a custom grouping raised.
        divert: called with (batch, row, exception); returns whether that tuple is omitted instead of failing the batch.
    """

    def __init__(
        self,
        edge: Edge,
        txid: int,
        task: int,
        at: At | None = None,
        divert: Callable[[pa.RecordBatch, int, BaseException], bool] | None = None,
    ) -> None:
        self.edge = edge
        self._at = at or At()
        self._divert = divert
        self.task = task
        # A copy: the memory of a grouping must not leak from one attempt to another, which may run in parallel.
        self._custom = deepcopy(edge.grouping.custom)
        # The start differs between txids and tasks, so that small batches do not all go to task 0.
        self._start = keys.hash_values((txid, task))
        self._next = self._start % edge.targets
        self._rows = 0
        if self._custom is not None:
            self._custom.prepare(edge.source, edge.stream, edge.targets)

    def route(self, batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Divide the rows of `batch` into (task, rows) pairs by ascending task; the order of rows is preserved."""
        edge = self.edge
        if edge.grouping.kind == "all":
            yield from ((target, batch) for target in range(edge.targets))
        elif edge.local:
            yield self.task, batch
        elif edge.targets == 1 or edge.grouping.kind == "global":
            yield 0, batch
        elif edge.grouping.kind == "custom":
            yield from self._route_custom(batch)
        else:
            yield from _divide(batch, self._targets(batch), edge.targets)

    def _targets(self, batch: pa.RecordBatch) -> Targets:
        edge, rows = self.edge, batch.num_rows
        if edge.grouping.kind in ("fields", "partial_key"):
            hashes = row_hashes(batch, [batch.schema.get_field_index(name) for name in edge.grouping.fields])
            first = keys.tasks_of(keys.groups_of(hashes), edge.targets)
            return first if edge.grouping.kind == "fields" else self._two_choices(hashes, first)
        start = self._next
        self._next = (start + rows) % edge.targets
        return (np.arange(start, start + rows, dtype=np.int64)) % edge.targets

    def _two_choices(self, hashes: keys.Hashes, first: Targets) -> Targets:
        """Assign two tasks to every key, and divide the rows of a key between them pseudo-randomly."""
        other = keys.groups_of(hashes * np.uint64(0x9E3779B97F4A7C15) + np.uint64(0x632BE59BD9B4E019))
        second = keys.tasks_of(other, self.edge.targets)
        begin = (self._start >> 2) + self._rows
        lots = keys.hash_column(pa.array(np.arange(begin, begin + len(first), dtype=np.int64)))
        self._rows += len(first)
        return np.where(lots & np.uint64(1), second, first)

    def _route_custom(self, batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        chosen: list[list[int]] = [[] for _ in range(self.edge.targets)]
        for row, values in enumerate(rows_of_batch(batch)):
            try:
                targets = self._chosen(values)
            except RAISED as error:
                if self._divert is None or not self._divert(batch, row, error):
                    self._at.input = shortened(dict(zip(batch.schema.names, values, strict=True)))
                    raise
                continue
            for target in targets:
                chosen[target].append(row)
        yield from ((target, batch.take(pa.array(rows))) for target, rows in enumerate(chosen) if rows)

    def _chosen(self, values: Sequence[Any]) -> list[int]:
        targets = list(self._custom.choose_tasks(self.task, values))
        for target in targets:
            check_target(self.edge, target)
        return targets


def routes(edge: Edge, router: Router, emitted: Iterable[Emitted]) -> Iterator[tuple[int, pa.RecordBatch, int]]:
    """Yield (task, rows, partition of the source) for everything sent over `edge`, in order."""
    for one in emitted:
        if one.stream != edge.stream:
            continue
        if one.direct is not None:
            check_target(edge, one.direct)
            yield one.direct, one.batch, one.partition
        else:
            yield from ((*routed, one.partition) for routed in router.route(one.batch))


def check_target(edge: Edge, target: object) -> None:
    """Raise `EmitError` unless `target` is the index of a task of the edge's bolt."""
    if not isinstance(target, int) or not 0 <= target < edge.targets:
        raise EmitError(
            f"{edge.source}: {edge.grouping} grouping sent a tuple of stream {edge.stream!r} to task {target!r} of "
            f"{edge.target!r}; its tasks are 0 to {edge.targets - 1}"
        )


def _divide(batch: pa.RecordBatch, targets: Targets, count: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    order = np.argsort(targets, kind="stable")
    bounds = np.searchsorted(targets[order], np.arange(count + 1))
    for target in range(count):
        rows = order[bounds[target] : bounds[target + 1]]
        if len(rows):
            yield target, batch.take(pa.array(rows))
