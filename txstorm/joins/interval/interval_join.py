"""Interval join: a ready-made bolt that joins two streams by key within bounds of time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta

import pyarrow as pa

from txstorm.api.assembly import AssembledBolt, Assembly, Site, SiteInput
from txstorm.api.state import arrow_type
from txstorm.errors import InputError
from txstorm.joins.interval.interval_committer import IntervalJoinCommitter
from txstorm.joins.interval.interval_plan import LEFT, RIGHT, SIDES, IntervalPlan
from txstorm.joins.rules.positions import Bounds
from txstorm.joins.selection import ANTI, SEMI, Selected, join_type, selection, side_name
from txstorm.joins.side import Side, declared_key, key_faults
from txstorm.joins.side_plan import SidePlan, input_of, missing_fields, partition_faults
from txstorm.windows.rules.forms import Duration, signed_duration


class IntervalJoin(AssembledBolt):
    """Committer that joins each left row with all right rows of its key whose times are within bounds.

    Example::

        clicks = Side("events", "clicks", key="user", time="ts", partition="partition")
        views = Side("events", "views", key="user", time="ts", partition="partition")
        join = IntervalJoin(clicks, views, before=Duration.minutes(30), how="left")
        builder.set_bolt("join", join, 2).fields_grouping("events", "clicks", ["user"]).fields_grouping(
            "events", "views", ["user"]
        )

    A left row is released when the position of the right side, the newest time that all of its partitions have reached,
    is later than its time + `after`; it is then joined, or unmatched, for good. Right rows are kept until the left
    side, and the oldest left row that is not released, have passed them. The end of input releases and expires all
    rows. Both sides are state: windows may span hours, and survive whatever the topology survives. The states
    ``<component>-left`` (rows that are not released) and ``<component>-right`` have the columns key, time (microseconds
    since 1970), id and partition, and the other fields of the side.

    Streams besides the default one, for every join type: ``unmatched_left`` and ``unmatched_right``, with the fields of
    that side: rows that have not matched, once, when that is final.

    Args:
        left, right: the sides. The right one may have `Side.grace`; see there.
        before, after: the bounds: left.time - before <= right.time <= left.time + after. `before` is required; `after`
            is 0 by default. Negative ones are allowed as timedelta, as long as their sum is not.
        how: ``inner``, ``left``, ``right``, ``full``, ``semi`` or ``anti``, or Spark's spelling of these.
        select: the fields of the default stream, each ``stream:field``, where stream is that of a side (for a default
            stream, its component), ``left`` or ``right``; None: all fields of both sides, or of the left one for
            ``semi`` and ``anti``. Names that occur twice become ``stream_field``.

    Raises:
        InputError: an argument is wrong.
    """

    def __init__(
        self,
        left: Side,
        right: Side,
        *,
        before: Duration | timedelta | None = None,
        after: Duration | timedelta | None = None,
        how: str = "inner",
        select: Sequence[str] | None = None,
    ) -> None:
        for name, side in zip(SIDES, (left, right), strict=True):
            if not isinstance(side, Side):
                raise InputError(f"IntervalJoin: {name}: expected a Side, got {side!r}")
        if before is None:
            raise InputError(
                "IntervalJoin: before is missing; say how much older than a left row a right row may be, such as "
                "before=Duration.minutes(30), or right rows would be kept forever"
            )
        self.left, self.right = left, right
        self.bounds = Bounds(
            signed_duration(before, "IntervalJoin: before"),
            0 if after is None else signed_duration(after, "IntervalJoin: after"),
        )
        if self.bounds.before + self.bounds.after < 0:
            raise InputError(
                f"IntervalJoin: the bounds are inverted: before={before!r} and after={after!r} have a negative sum, so "
                "no right row is within them; bounds are left.time - before <= right.time <= left.time + after"
            )
        self.how = join_type("IntervalJoin", how)
        if select is not None and (
            not isinstance(select, list | tuple) or not select or not all(isinstance(one, str) for one in select)
        ):
            raise InputError(f"IntervalJoin: select: expected a list of 'stream:field', got {select!r}")
        self.select = None if select is None else list(select)

    def assemble(self, site: Site) -> Assembly:
        """Return the committer that joins."""
        sides = (self.left, self.right)
        found = [input_of(side, site) for side in sides]
        faults = list(_input_faults(self, site, found))
        output, wrong = _output(self, found)
        faults += wrong
        kinds = [_key_kind(side) for side in sides]
        kind = next((one for one in kinds if one is not None), None)
        if None not in kinds and kinds[LEFT] != kinds[RIGHT]:
            faults.append(
                f"the keys of its sides have the types {kinds[LEFT]} and {kinds[RIGHT]}, so none would match; declare "
                "the same type in columns"
            )
        elif None in kinds:
            faults += key_faults(*map(declared_key, sides))
        left, right = (SidePlan.of(side, site, kind=kind) for side in sides)
        to_first = any(one is not None and one.grouping == "global" for one in found)
        plan = IntervalPlan(site.id, site.parallelism, (left, right), self.bounds, self.how, tuple(output), to_first)
        return Assembly(IntervalJoinCommitter(plan), tuple(faults), ())


def _key_kind(side: Side) -> pa.DataType | None:
    """Return the declared type of a key of one field; None if it is stored as text."""
    if len(side.key) > 1 or side.columns is None or side.key[0] not in side.columns:
        return None
    return arrow_type(side.columns[side.key[0]])


def _input_faults(join: IntervalJoin, site: Site, found: Sequence[SiteInput | None]) -> Iterator[str]:
    """Yield the faults of the sides and their inputs."""
    sides = (join.left, join.right)
    if join.left.reads == join.right.reads:
        yield (
            f"its sides are the same stream {join.left.stream!r} of {join.left.component!r}; to join a stream with "
            "itself, let a bolt emit it again, and read that as one of the sides"
        )
    if join.left.grace is not None:
        yield "grace is for the right side: it says how long left rows wait for one that pauses; leave it out"
    for name, side, one in zip(SIDES, sides, found, strict=True):
        where = f"the {name} side, stream {side.stream!r} of {side.component!r}"
        if one is None:
            known = [f"{given.component}/{given.stream}" for given in site.inputs]
            yield f"{where}, is not one of its inputs ({', '.join(known) or 'none'}); add a grouping for it"
            continue
        if one.fields is not None:
            for what, missing in missing_fields(side, one.fields):
                yield f"{where}: {what}: there is no field {missing}"
        yield from one.time_faults(side.time)
        yield from partition_faults(where, side)
        if one.results is not None and one.results.frontier is None and one.results.time == side.time:
            yield (
                f"{where}, can never report a position: its component is a right or full join, whose unmatched right "
                "rows have no left time, and may come at any time; use a left or inner join there"
            )
    for one in site.inputs:
        if (one.component, one.stream) not in [side.reads for side in sides]:
            yield f"its input, {one.where}, is none of its sides; remove the grouping"
    given = [one for one in found if one is not None]
    if len(given) == len(sides) and all(
        set(side.key) <= set(one.fields or side.key) for side, one in zip(sides, given, strict=True)
    ):
        yield from _grouping_faults(site, sides, given)


def _grouping_faults(site: Site, sides: Sequence[Side], found: Sequence[SiteInput]) -> Iterator[str]:
    """Yield a fault for each side whose rows of one key might reach another task than those of the other side."""
    if all(one.grouping == "global" or (site.parallelism == 1 and one.grouping != "fields") for one in found):
        return
    if any(len(side.key) != len(sides[LEFT].key) for side in sides):
        return
    places = []
    for side, one in zip(sides, found, strict=True):
        if one.grouping != "fields" or not set(one.grouped_by) <= set(side.key):
            yield (
                f"its input {one.component!r} is grouped by {one.how}, so rows of one key may reach two tasks; use "
                f"{one.grouping_by(side.key)}"
            )
        else:
            places.append([side.key.index(name) for name in one.grouped_by])
    if len(places) == len(sides) and places[LEFT] != places[RIGHT]:
        ways = " and ".join(str(list(one.grouped_by)) for one in found)
        yield f"its sides are grouped by {ways}, which are not the same fields of their keys; group both by all"


def _output(join: IntervalJoin, found: Sequence[SiteInput | None]) -> tuple[list[Selected], list[str]]:
    """Return the fields of the default stream, and what is wrong with `select`."""
    left, right = ((one.fields if one is not None else None) or () for one in found)
    offered = SIDES[:1] if join.how in (SEMI, ANTI) else SIDES
    names = (side_name(join.left), side_name(join.right))
    chosen, faults = selection("IntervalJoin", join.select, names, (left, right), offered)
    if len(join.left.key) != len(join.right.key):
        faults.append(
            f"the keys of its sides have {len(join.left.key)} and {len(join.right.key)} fields: "
            f"{list(join.left.key)}, {list(join.right.key)}; use as many on both sides"
        )
    return chosen, faults
