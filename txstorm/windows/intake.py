"""Intake: the tuples that a task receives in a transaction, with their timestamps, keys and gaps, as columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat
from typing import Any

import numpy as np
import pyarrow as pa

from txstorm.api.attempt import TransactionAttempt
from txstorm.api.names import DEFAULT_STREAM, map_side_id
from txstorm.api.tuples import Origin, Tuple
from txstorm.errors import LEAVE_OUT, InputError
from txstorm.keys import EQUAL, name_of, row_text, row_texts
from txstorm.windows.plan import TimeSource, WindowPlan
from txstorm.windows.rules.event_time import (
    EARLIEST,
    WHOLE,
    Times,
    TimestampError,
    times_of_column,
    times_of_values,
    unusable,
)
from txstorm.windows.rules.forms import Duration, Trigger, duration


@dataclass(frozen=True)
class Chunk:
    """Tuples of one input and source task, in order of delivery.

    Attributes:
        number: the index of the input.
        task: the source task.
        values: the tuples: a record batch, or a list of tuples of values that have no common Arrow type.
        times: their timestamps; None in processing time.
        units: their keys as text; None for windows per task.
        gaps: for sessions, how long the gap after each is, in microseconds.
        fires: for custom triggers, which of them fire.
        newest: partition → newest timestamp; at most as far ahead of the stamp as they may be.
        ahead: number of tuples that are further ahead.
    """

    number: int
    task: int
    values: pa.RecordBatch | list[tuple[Any, ...]]
    times: Times | None
    units: pa.Array | None
    gaps: Times | None
    fires: list[bool] | None
    newest: dict[str, int]
    ahead: int = 0

    def __len__(self) -> int:
        return len(self.values) if isinstance(self.values, list) else int(self.values.num_rows)

    def rows(self) -> list[tuple[Any, ...]]:
        """Return the values of the tuples."""
        if isinstance(self.values, list):
            return self.values
        if not self.values.num_columns:
            return [()] * self.values.num_rows
        return list(zip(*(column.to_pylist() for column in self.values.columns), strict=True))


Check = Callable[[Chunk], object]
"""Raises an error for a tuple that a component cannot take."""


class Intake:
    """Reads tuples for a windowed component: checks them one by one or, where nothing calls user code, as columns.

    Args:
        plan: the plan of the component.
        attempt: the attempt.
        form: the form of the texts of keys; see `txstorm.keys.text`.
        stamp: the stamp of its transaction, with which timestamps are compared; None: they have been.
    """

    def __init__(
        self, plan: WindowPlan, attempt: TransactionAttempt, stamp: int | None = None, *, form: int = EQUAL
    ) -> None:
        self._plan = plan
        self._form = form
        self._stamp = stamp
        self._numbers = {(one.component, one.stream): number for number, one in enumerate(plan.inputs)}
        if plan.event_time:
            stages = (map_side_id(plan.id, one.component, one.stream) for one in plan.inputs)
            self._numbers.update({(stage, DEFAULT_STREAM): number for number, stage in enumerate(stages)})
        self._attempt = attempt

    def number(self, component: str, stream: str) -> int | None:
        """Return the index of the input whose tuples come by this stream; None if none do."""
        return self._numbers.get((component, stream))

    def origin(self, number: int, task: int) -> Origin:
        """Return the origin of tuples of an input."""
        one = self._plan.inputs[number]
        return Origin(self._attempt, one.component, one.stream, task, one.fields)

    def batch(self, number: int, task: int, batch: pa.RecordBatch) -> Chunk:
        """Read a record batch; raise `ValueError` for the first tuple that is an error."""
        plan = self._plan
        batch = batch.select(plan.inputs[number].fields)
        calls = (plan.time.extractor, plan.form.trigger, plan.form.gap if callable(plan.form.gap) else None)
        tuples = list(self._tuples(number, task, batch)) if any(calls) else []
        units = None if plan.key is None else row_texts([batch.column(name) for name in plan.key], self._form)
        times = self._times(number, task, batch, tuples)
        partition = plan.time.partition
        parts = None if partition is None else batch.column(partition)
        newest = _newest(times, parts)
        return self._bounded(self._chunk(Chunk(number, task, batch, times, units, None, None, newest), tuples))

    def tuples(self, number: int, task: int, given: Sequence[Tuple]) -> Chunk:
        """Read tuples whose values have no common Arrow type."""
        plan, origin = self._plan, self.origin(number, task)
        given = [Tuple(one.values, origin) for one in given]
        times: Times | None = None
        if plan.event_time:
            times = self._times_of(number, task, _stamps(plan.time, given), given)
        units = None
        if plan.key is not None:
            units = pa.array([row_text([one[name] for name in plan.key], self._form) for one in given], pa.string())
        partition = plan.time.partition
        newest = _newest(times, None if partition is None else [one[partition] for one in given])
        values = [tuple(one.values) for one in given]
        return self._bounded(self._chunk(Chunk(number, task, values, times, units, None, None, newest), given))

    def _bounded(self, chunk: Chunk) -> Chunk:
        """Bound the newest times; raise `ValueError` for a tuple too far from the stamp, if that is an error."""
        clock, source = self._plan.clock, self._plan.inputs[chunk.number]
        if self._stamp is None or chunk.times is None:
            return chunk
        try:
            clock.check(chunk.times, self._stamp)
        except TimestampError as error:
            raise self._bad(Tuple(chunk.rows()[error.row], self.origin(chunk.number, chunk.task)), error) from None
        latest = None if clock.ahead is None else self._stamp + clock.ahead
        if latest is None or source.frontier is not None or max(chunk.newest.values(), default=latest) <= latest:
            return chunk
        newest = {part: min(time, latest) for part, time in chunk.newest.items()}
        return replace(chunk, newest=newest, ahead=int((chunk.times > latest).sum()))

    def _chunk(self, chunk: Chunk, tuples: Sequence[Tuple]) -> Chunk:
        """Add what the functions of the window form say of the tuples."""
        form = self._plan.form
        if isinstance(form.gap, Duration):
            return replace(chunk, gaps=np.full(len(chunk), form.gap.microseconds, np.int64))
        if form.gap is not None:
            return replace(chunk, gaps=np.array([_gap(self._plan.id, form.gap, one) for one in tuples], np.int64))
        if form.trigger is not None:
            return replace(chunk, fires=[_fires(self._plan.id, form.trigger, one) for one in tuples])
        return chunk

    def _times(self, number: int, task: int, batch: pa.RecordBatch, tuples: Sequence[Tuple]) -> Times | None:
        source = self._plan.time
        if source.extractor is not None:
            return self._times_of(number, task, map(source.extractor, tuples), tuples)
        if source.field is None:
            return None
        try:
            return self._shifted(number, times_of_column(batch.column(source.field), source.unit))
        except TimestampError as error:
            error.column, error.find = source.field, partial(unusable, unit=source.unit)
            raise self._bad(next(self._tuples(number, task, batch.slice(error.row, 1))), error) from None

    def _times_of(self, number: int, task: int, stamps: Iterable[Any], tuples: Sequence[Tuple]) -> Times:
        try:
            return self._shifted(number, times_of_values(stamps, self._plan.time.unit))
        except TimestampError as error:
            error.column, error.find = self._plan.time.field, partial(unusable, unit=self._plan.time.unit)
            raise self._bad(tuples[error.row], error) from None

    def _shifted(self, number: int, times: Times) -> Times:
        shift = self._plan.inputs[number].shift
        return times + shift if shift else times

    def _bad(self, one: Tuple, error: TimestampError) -> ValueError:
        field = self._plan.time.field
        what = f"field {field!r}" if field is not None else "the timestamp extractor"
        return ValueError(f"{self._plan.id}: {what} of {one!r}: {error}; correct the tuple upstream{LEAVE_OUT}")

    def _tuples(self, number: int, task: int, batch: pa.RecordBatch) -> Iterator[Tuple]:
        rows = zip(*(column.to_pylist() for column in batch.columns), strict=True)
        return map(Tuple, rows, repeat(self.origin(number, task)))


def _newest(times: Times | None, parts: pa.Array | list[Any] | None) -> dict[str, int]:
    """Return partition → newest timestamp; the whole input is one partition if there is no partition field."""
    if times is None or not len(times):
        return {}
    if parts is None:
        return {WHOLE: int(times.max())}
    if not isinstance(parts, list) and (pa.types.is_string(parts.type) or pa.types.is_integer(parts.type)):
        encoded = parts.dictionary_encode(null_encoding="encode")  # a Python object per partition, not per row
        highest = np.full(len(encoded.dictionary), EARLIEST)
        np.maximum.at(highest, encoded.indices.to_numpy(zero_copy_only=False), times)
        parts, times = encoded.dictionary.to_pylist(), highest
    names: list[Any] = parts if isinstance(parts, list) else parts.to_pylist()
    newest: dict[str, int] = {}
    for part, time in zip(map(name_of, names), times.tolist(), strict=True):
        newest[part] = max(time, newest.get(part, time))
    return newest


def _stamps(source: TimeSource, given: Sequence[Tuple]) -> Iterable[Any]:
    if source.extractor is not None:
        return map(source.extractor, given)
    assert source.field is not None
    return [one[source.field] for one in given]


def _gap(component: str, function: Trigger, one: Tuple) -> int:
    try:
        return duration(function(one), "the gap").microseconds
    except InputError as error:
        msg = f"{component}: the function given to with_session_window was called with {one!r}: {error}"
        raise ValueError(msg) from None


def _fires(component: str, function: Trigger, one: Tuple) -> bool:
    answer = function(one)
    if not isinstance(answer, bool | np.bool_):
        raise ValueError(f"{component}: the trigger returned {answer!r} for {one!r}, expected True or False")
    return bool(answer)
