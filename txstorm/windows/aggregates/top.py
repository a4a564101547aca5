"""Top per window: the results of a window aggregate with the greatest values, per window."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from txstorm.api.assembly import AssembledBolt, Assembly, Site
from txstorm.api.attempt import TransactionAttempt
from txstorm.api.bolt import BatchBolt, Committer
from txstorm.api.context import TaskContext
from txstorm.api.names import near
from txstorm.api.output import Collector, OutputFieldsDeclarer
from txstorm.errors import InputError
from txstorm.windows.aggregates.groups import Numbers, integers, numbered, ranked, whole
from txstorm.windows.aggregates.result_rows import END_FIELD, START

RANK = "rank"


class TopPerWindow(AssembledBolt):
    """The results with the `n` greatest values of a field, per window: SQL's ``RANK() <= n``, so ties are all emitted.

    Subscribe it to a `WindowAggregate`. It emits the fields of the results, and ``rank``, ordered by end, rank and
    order of arrival; values of None and NaN have no rank::

        builder.set_bolt("top", TopPerWindow(1, "n")).global_grouping("counts")

    Args:
        n: the highest rank that is emitted.
        by: the field whose values are compared.

    Raises:
        InputError: `n` is no int of at least 1, or `by` no name of a field.
    """

    def __init__(self, n: int, by: str) -> None:
        if type(n) is not int or n < 1:
            msg = f"TopPerWindow: expected a number of ranks, an int of at least 1, got {n!r}"
            raise InputError(msg)
        if not isinstance(by, str) or not by or by in (START, END_FIELD):
            msg = f"TopPerWindow: expected the name of a field with values to compare, got {by!r}"
            raise InputError(msg)
        self.n, self.by = n, by

    def assemble(self, site: Site) -> Assembly:
        """Return the bolt that ranks."""
        faults = []
        fields: tuple[str, ...] = next((one.fields for one in site.inputs if one.fields is not None), ())
        for one in site.inputs:
            if one.fields is None:
                continue
            where = f"stream {one.stream!r} of {one.component!r}"
            faults += [
                f"TopPerWindow: {where} has no field {name!r}{near(name, list(one.fields))}; it has "
                f"{', '.join(one.fields)}; subscribe it to a WindowAggregate"
                for name in (START, END_FIELD, self.by)
                if name not in one.fields
            ]
            if one.fields != fields:
                faults.append(f"TopPerWindow: {where} has other fields than the other inputs; subscribe it to one")
            split = one.grouping == "fields" and set(one.grouped_by) <= {START, END_FIELD}
            if site.parallelism > 1 and one.grouping != "global" and not split:
                faults.append(
                    f"TopPerWindow: its input {one.component!r} is grouped by {one.grouping}, so two tasks may get "
                    f"results of one window; use fields_grouping({one.component!r}, ['end'])"
                )
        return Assembly(RankPerWindow(self.n, self.by, fields), tuple(faults))


class RankPerWindow(BatchBolt, Committer):
    """Committer that takes the place of a `TopPerWindow`.

    Args:
        n: the highest rank that is emitted.
        by: the field whose values are compared.
        fields: the fields of its input.
    """

    def __init__(self, n: int, by: str, fields: tuple[str, ...]) -> None:
        self.n, self.by, self.inputs = n, by, fields

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        """Declare the fields of the results, and the rank."""
        declarer.declare(*self.inputs, RANK)

    def prepare(self, context: TaskContext, collector: Collector, attempt: TransactionAttempt) -> None:
        """Set up for one batch."""
        self._collector = collector
        self._batches: list[Any] = []

    def execute_batch(self, batch: Any) -> None:
        """Take results."""
        self._batches.append(batch.select(self.inputs))

    def finish_batch(self) -> None:
        """Emit the results with the lowest ranks."""
        if not self._batches:
            return
        rows = pa.concat_tables([pa.Table.from_batches([one]) for one in self._batches], promote_options="permissive")
        ranks = window_ranks(rows, self.by)
        order = np.lexsort((ranks, integers(rows.column(END_FIELD))))
        order = order[(ranks[order] > 0) & (ranks[order] <= self.n)]
        if len(order):
            self._collector.emit_batch(rows.take(pa.array(order)).append_column(RANK, pa.array(ranks[order])))


def window_ranks(rows: pa.Table, by: str) -> Numbers:
    """Return the rank of each row in its window: 1 for the greatest value, equal ranks for equal ones; 0 for None."""
    codes, _ = numbered([whole(rows.column(name)) for name in (START, END_FIELD)], rows.num_rows)
    values = ranked(whole(rows.column(by)))
    order = np.lexsort((-values, codes))
    codes, values = codes[order], values[order]
    places = np.arange(len(order))
    window = np.r_[True, codes[1:] != codes[:-1]]
    other = window | np.r_[True, values[1:] != values[:-1]]
    begin = np.maximum.accumulate(np.where(window, places, 0))
    place = np.maximum.accumulate(np.where(other, places, 0))
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.where(values < 0, 0, place - begin + 1)
    return ranks
