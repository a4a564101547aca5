"""Store join: looks up, for each left row, the rows of a join store within its bounds."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa

from txstorm.api.assembly import AssembledBolt, Assembly, FilledBy, Site
from txstorm.api.bolt import BatchBolt
from txstorm.api.join_store import JoinStore, StoreRow, StoreUse, same_store
from txstorm.api.names import DEFAULT_STREAM
from txstorm.api.output import OutputFieldsDeclarer
from txstorm.errors import InputError, StateError
from txstorm.joins.columns import Column, columns_of, emit, picked, united
from txstorm.joins.delay.feed import StoreFeed, checked_size, checked_store
from txstorm.joins.delay.lone_side import SideCommitter, check_storable, keyed
from txstorm.joins.delay.sync import DataDelaySync
from txstorm.joins.selection import (
    ANTI,
    INNER,
    LEFT,
    LEFT_OUTER,
    LEFT_ROWS,
    RIGHT,
    SEMI,
    Selected,
    join_type,
    selection,
    side_name,
)
from txstorm.joins.side import Side, declared_key, key_faults
from txstorm.joins.side_plan import SidePlan, checked_side, input_of, side_faults
from txstorm.keys import plain_values
from txstorm.windows.rules.forms import Duration, signed_duration

if TYPE_CHECKING:
    from txstorm.joins.delay.store_target import TaskLookUps

UNMATCHED = "unmatched_left"
"""Stream of the left rows without a match."""
AT_ONCE = Duration(0)
NO_RIGHT_ROWS = "only IntervalJoin knows unmatched right rows: a store does not list those that no left row has matched"


class StoreJoin(AssembledBolt):
    """Bolt that joins each left row, as it comes, with the rows of a store.

    A store row matches if it has the row's key, and left.time - before <= its time <= left.time + after. Put a
    `DataDelaySync` in front of it, so that all of them are there. Left rows without a match are emitted to the stream
    ``unmatched_left``, whatever `how` is.

    Args:
        left: the rows.
        store: the store. If a `StoreFeed` of the same topology fills it, rows that are not put yet are seen, too.
        before: required; how much earlier than a left row the rows that it matches may be; negative: how much later
            at least.
        after: how much later they may be.
        how: ``inner``, ``left``, ``semi`` or ``anti``, or Spark's spelling of it: the default stream is SQL's result.
        select: the output fields, each ``stream:field``, or with ``left:`` or ``right:``; None: all fields of both, if
            a `StoreFeed` of the same topology fills the store.
        batch_size: the most rows that one request looks up.

    Raises:
        InputError: an argument is wrong.
    """

    def __init__(
        self,
        left: Side,
        store: JoinStore,
        *,
        before: Duration | timedelta | None = None,
        after: Duration | timedelta = AT_ONCE,
        how: str = INNER,
        select: Sequence[str] | None = None,
        batch_size: int = 1000,
    ) -> None:
        self.left = checked_side("StoreJoin", "left", left)
        self.store = checked_store("StoreJoin", store)
        if before is None:
            raise InputError(
                "StoreJoin: before is missing; say how much older than a left row a right row may be, such as "
                "before=Duration.minutes(30)"
            )
        self.before = signed_duration(before, "StoreJoin: before")
        self.after = signed_duration(after, "StoreJoin: after")
        if self.before + self.after < 0:
            msg = f"StoreJoin: no time is within before={before!r} and after={after!r}; expected before + after >= 0"
            raise InputError(msg)
        self.how = join_type("StoreJoin", how, LEFT_ROWS, NO_RIGHT_ROWS)
        if isinstance(select, str) or (select is not None and not list(select)):
            raise InputError(f"StoreJoin: select: expected a list of 'stream:field', got {select!r}")
        self.select = None if select is None else list(select)
        self.batch_size = checked_size("StoreJoin", batch_size)

    def assemble(self, site: Site) -> Assembly:
        """Return the committer that looks rows up."""
        side = SidePlan.of(self.left, site)
        faults = side_faults("StoreJoin", "left", self.left, site)
        filled = next((one for one in site.filled if same_store(one.store, self.store)), None)
        different, warnings = self._mismatches(site, filled)
        faults += different
        right_fields, right_name = None, RIGHT
        if filled is not None:
            right_fields = filled.fields
            right_name = filled.component if filled.stream == DEFAULT_STREAM else filled.stream
        sides = (LEFT,) if self.how in (SEMI, ANTI) else (LEFT, RIGHT)
        if self.select is None and right_fields is None and RIGHT in sides:
            faults.append(
                "StoreJoin: the fields of the store's rows are not known, since no StoreFeed of this topology fills "
                "it; give select"
            )
        names = (side_name(self.left), right_name)
        left_fields = () if input_of(self.left, site) is None else side.fields
        fields, wrong = selection("StoreJoin", self.select, names, (left_fields, right_fields), sides)
        use = StoreUse(site.id, self.store, batch_size=self.batch_size)
        plan = StoreJoinPlan(side, use, self.before, self.after, self.how, tuple(fields))
        return Assembly(StoreJoinCommitter(plan), tuple(faults + wrong), tuple(warnings))

    def _mismatches(self, site: Site, filled: FilledBy | None) -> tuple[list[str], list[str]]:
        """Return faults and warnings of what differs from the sync and the feed, so that rows find no match."""
        faults, warnings = list[str](), list[str]()
        sync = next((one for one in site.inputs if isinstance(one.bolt, DataDelaySync)), None)
        if sync is not None and sync.bolt.after < self.after:
            warnings.append(
                f"StoreJoin: after is {_shown(self.after)}, but {sync.component!r} holds rows with an after of "
                f"{_shown(sync.bolt.after)}, so that later matches are missed; give both the same after"
            )
        feed = None if filled is None else filled.bolt
        if filled is None or not isinstance(feed, StoreFeed):
            return faults, warnings
        if feed.retain < self.before:
            warnings.append(
                f"StoreJoin: before is {_shown(self.before)}, but {filled.id!r} retains rows for "
                f"{_shown(feed.retain)}, so that earlier matches are missed; retain them for before, and as much as "
                "left rows may lag"
            )
        if len(feed.right.key) != len(self.left.key):
            keys = f"{list(self.left.key)} here, {list(feed.right.key)} in {filled.id!r}"
            faults.append(f"StoreJoin: the keys of its sides have different numbers of fields, so none match: {keys}")
        faults += [f"StoreJoin: {one}" for one in key_faults(declared_key(self.left), declared_key(feed.right))]
        return faults, warnings


@dataclass(frozen=True)
class StoreJoinPlan:
    """Plan of a store join: its left side, its store, its bounds in microseconds, its type and its output fields."""

    side: SidePlan
    use: StoreUse
    before: int
    after: int
    how: str
    fields: tuple[Selected, ...]


@dataclass(frozen=True)
class _LeftRows:
    """Left rows of a task, ordered by time and arrival, as parallel lists.

    Attributes:
        times: their times.
        keys: their keys; None for a row without one.
        columns: the values of each field: an array, or a list of values without a common Arrow type.
    """

    times: list[int]
    keys: list[Any]
    columns: list[Column]


class StoreJoinCommitter(SideCommitter):
    """Committer that takes the place of a `StoreJoin`."""

    def __init__(self, plan: StoreJoinPlan) -> None:
        super().__init__(plan.side)
        self.plan = plan
        self.use = plan.use

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        """Declare the results, and left rows without a match."""
        declarer.declare([one.name for one in self.plan.fields])
        declarer.declare_stream(UNMATCHED, self.plan.side.fields)

    def map_side(self, source: str, stream: str, fields: tuple[str, ...]) -> BatchBolt:
        """Return the stage that checks the times and keys of left rows."""
        side = self.plan.side
        return side.stage(partial(check_storable, side, side.side.key))

    def finish_batch(self) -> None:
        """Look the rows up, and emit the results, ordered by the left row's time and arrival."""
        context = self._context
        look_ups = cast("TaskLookUps | None", context.managed())
        rows = self._rows()
        if look_ups is None or not rows.times:
            return
        how, with_key = self.plan.how, [at for at, key in enumerate(rows.keys) if key is not None]
        size = self.plan.use.batch_size
        requests = (with_key[at : at + size] for at in range(0, len(with_key), size))
        matches = (found for some in requests for found in self._looked_up(look_ups, rows, some))
        alone, left, right = list[int](), list[int](), list[StoreRow | None]()
        for at, key in enumerate(rows.keys):
            found = () if key is None else next(matches)
            if not found:
                alone.append(at)
            if how in (INNER, LEFT_OUTER) and found:
                left += [at] * len(found)
                right += found
            elif how == (SEMI if found else ANTI) or (how == LEFT_OUTER and not found):
                left.append(at)
                right.append(None)
        fields, chosen, unmatched = self.plan.side.fields, np.array(left, np.int64), np.array(alone, np.int64)
        values = [
            picked(rows.columns[fields.index(one.field)], chosen)
            if one.side == LEFT
            else _column(self._right_values(one.field, right))
            for one in self.plan.fields
        ]
        emit(self._collector, [one.name for one in self.plan.fields], values)
        emit(self._collector, fields, [picked(column, unmatched) for column in rows.columns], UNMATCHED)

    def _right_values(self, field: str, rows: Sequence[StoreRow | None]) -> list[Any]:
        """Return a field of store rows; None where there is no row, or a row lacks it."""
        try:
            return [None if row is None else row.value.get(field) for row in rows]
        except AttributeError:
            row = next(one for one in rows if one is not None and not isinstance(one.value, Mapping))
            raise StateError(
                f"{self._context.component}: row {row.id!r} of key {row.key!r} in the store has the value "
                f"{repr(row.value)[:100]}, expected fields and their values, as a StoreFeed puts them"
            ) from None

    def _rows(self) -> _LeftRows:
        """Return the rows that have arrived."""
        side, chunks = self.plan.side, self.chunks
        if not chunks:
            return _LeftRows([], [], [])
        times = np.concatenate([chunk.times for chunk in chunks if chunk.times is not None])
        order = np.argsort(times, kind="stable")
        columns = [united(parts, order) for parts in zip(*map(columns_of, chunks), strict=True)]
        usable = np.concatenate([keyed(chunk, side) for chunk in chunks])[order].tolist()
        given = [plain_values(columns[side.fields.index(name)]) for name in side.side.key]
        keys = given[0] if len(given) == 1 else list(zip(*given, strict=True))
        return _LeftRows(
            times[order].tolist(), [key if there else None for key, there in zip(keys, usable, strict=True)], columns
        )

    def _looked_up(self, look_ups: TaskLookUps, rows: _LeftRows, some: Sequence[int]) -> Iterator[Sequence[StoreRow]]:
        """Yield the matches of each of the rows `some`, after one request."""
        before, after, times = self.plan.before, self.plan.after, rows.times
        start, end = times[some[0]] - before, times[some[-1]] + after
        wanted = [rows.keys[at] for at in some]
        keys, kinds = set(wanted), {(_kind(key), key) for key in wanted}
        found: dict[Any, Mapping[Any, Sequence[StoreRow]]] = {}
        if len(kinds) == len(keys):
            found[None] = look_ups.get_many(keys, start, end)
        else:  # 1 and True are different keys, but not to a dict
            for kind in dict.fromkeys(kind for kind, _ in kinds):
                found[kind] = look_ups.get_many({key for of, key in kinds if of == kind}, start, end)
        only = found.get(None)
        for at, key in zip(some, wanted, strict=True):
            of_key = (found[_kind(key)] if only is None else only)[key]
            if not of_key:
                yield ()
                continue
            low, high = times[at] - before, times[at] + after
            if low <= of_key[0].time and of_key[-1].time <= high:
                yield of_key
                continue
            first = bisect_left(of_key, low, key=_TIME)
            yield of_key[first : bisect_right(of_key, high, first, key=_TIME)]


_TIME = attrgetter("time")


_PLAIN = (str, int, float, bool, bytes, datetime)
"""Types that an array of their values keeps as they are."""


def _column(values: list[Any]) -> Any:
    """Return values as an array, if all are of one type that it keeps as it is; as they are otherwise."""
    kinds = set(map(type, values)) - {type(None)}
    if len(kinds) > 1 or not kinds <= set(_PLAIN):
        return values
    try:
        return pa.array(values)
    except (pa.ArrowException, OverflowError):
        return values


def _kind(key: Any) -> Any:
    """Return the type of a key, or the types of its parts."""
    return tuple(map(type, key)) if type(key) is tuple else type(key)


def _shown(micros: int) -> str:
    """Return a time in microseconds as text such as ``0:00:10``."""
    return str(timedelta(microseconds=micros))
