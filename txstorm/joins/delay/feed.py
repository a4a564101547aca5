"""Store feed: puts the tuples of the right side of a join into a store, and tells how far they are there."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, cast

import numpy as np
import pyarrow as pa

from txstorm.api.assembly import AssembledBolt, Assembly, Site
from txstorm.api.bolt import BatchBolt
from txstorm.api.join_store import JoinStore, MarkedJoinStore, StoreUse, same_store
from txstorm.api.output import OutputFieldsDeclarer
from txstorm.errors import InputError
from txstorm.joins.delay.lone_side import ProgressCommitter, check_storable, keyed
from txstorm.joins.delay.staged_rows import RowForm, TaskFeed
from txstorm.joins.side import Side
from txstorm.joins.side_plan import SidePlan, checked_side, side_faults
from txstorm.windows.records import COMPONENT, ComponentRecord
from txstorm.windows.rules.event_time import A_DAY, END, ClockRule
from txstorm.windows.rules.forms import Duration, duration

POSITION = "position"
"""Stream, and field, of the position: microseconds, None while it is undefined."""


class StoreFeed(AssembledBolt):
    """Bolt that puts the tuples of a side into a join store, and emits its position in each transaction.

    Example::

        feed = StoreFeed(Side("views", key="ad", time="ts", id="view"), RedisStore(url), retain=Duration.hours(2))
        builder.set_bolt("fill", feed).fields_grouping("views", ["ad"])

    Rows are put once their transaction is decided, in requests of at most `batch_size`, and the first row of an id
    stays. Tuples without a key match nothing, and are not put. The stream ``position`` carries the time before which
    nothing is expected any more, in microseconds since 1970, None while it is undefined: in each transaction one tuple,
    to be read by a `DataDelaySync` with an all-grouping.

    Args:
        right: what is put; it needs an id. Its `grace` is 0 by default: while its source is read to the end, the
            position is the stamp of the transaction.
        store: the store.
        retain: required; how far behind the position rows expire: ``before`` of the look-ups, and as much as left rows
            may lag.
        batch_size: the most rows of one request.
        max_ahead: that of the side, which it replaces.

    Raises:
        InputError: an argument is wrong.
    """

    def __init__(
        self,
        right: Side,
        store: JoinStore,
        *,
        retain: Duration | timedelta | None = None,
        batch_size: int = 1000,
        max_ahead: Duration | timedelta | None = A_DAY,
    ) -> None:
        self.right = checked_side("StoreFeed", "right", right)
        if max_ahead is not A_DAY:
            self.right = copy(right)
            self.right.clock = ClockRule.of(max_ahead, "StoreFeed: max_ahead")
        self.store = checked_store("StoreFeed", store)
        if retain is None:
            raise InputError(
                "StoreFeed: retain is missing; say how far behind the newest rows others are kept, such as "
                "retain=Duration.hours(2): the 'before' of the join, and as much as the left side may lag"
            )
        self.retain = duration(retain, "StoreFeed: retain", zero=True).microseconds
        self.batch_size = checked_size("StoreFeed", batch_size)
        self.fills = store, *right.reads

    def assemble(self, site: Site) -> Assembly:
        """Return the committer that stages rows and emits the position."""
        faults = side_faults("StoreFeed", "right", self.right, site)
        if self.right.id is None:
            faults.append(
                "StoreFeed: the right side has no id, by which a store tells rows that come again from new ones; "
                "give the field that identifies a tuple: Side(…, id=…)"
            )
        others = [one.id for one in site.filled if one.id != site.id and same_store(one.store, self.store)]
        if others and others[0] < site.id:
            faults.append(f"StoreFeed: {others[0]!r} fills the same store; give each its own, or its own prefix")
        warnings = []
        if not isinstance(self.store, MarkedJoinStore):
            warnings.append(
                f"StoreFeed: {type(self.store).__name__} keeps no mark (mark, replace_mark), so a start cannot notice "
                "that it is another topology's store, or has lost rows"
            )
        use = StoreUse(site.id, self.store, fills=True, batch_size=self.batch_size)
        plan = FeedPlan(SidePlan.of(self.right, site, grace=0), use, self.retain)
        return Assembly(FeedCommitter(plan), tuple(faults), tuple(warnings))


@dataclass(frozen=True)
class FeedPlan:
    """Plan of a feed: its side, its store, and how far behind its position rows expire, in microseconds."""

    side: SidePlan
    use: StoreUse
    retain: int

    def expiry(self, position: int | None) -> int | None:
        """Return the time below which rows expire at a position; None: no row does, nor at the end of input."""
        return None if position is None or position == END else position - self.retain


class FeedCommitter(ProgressCommitter):
    """Committer that takes the place of a `StoreFeed`."""

    def __init__(self, plan: FeedPlan) -> None:
        super().__init__(plan.side, plan.side.fixed())
        self.plan = plan
        self.use = plan.use

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        """Declare the position."""
        declarer.declare_stream(POSITION, (POSITION,))

    def retention(self, state: str) -> str | None:
        """Describe for how long the progress is kept."""
        return "one row" if state == self.progress.name else None

    def map_side(self, source: str, stream: str, fields: tuple[str, ...]) -> BatchBolt:
        """Return the stage that checks tuples and reports the newest times."""
        plan, side = self.plan.side, self.plan.side.side
        return plan.stage(partial(check_storable, plan, (*side.key, *([side.id] if side.id is not None else []))))

    def finish_batch(self) -> None:
        """Stage the rows and what expires, and emit the position."""
        plan, context, side = self.plan, self._context, self.plan.side
        records = context.state(self.progress.name)
        component = ComponentRecord.read(records.get(COMPONENT))
        arrivals = self._arrivals()
        progress = side.rule.after(component.progress, arrivals, context.stamp)
        hidden, expiry = (plan.expiry(one.watermark) for one in (component.progress, progress))
        feed = cast("TaskFeed | None", context.managed())
        number = 0
        if feed is not None:
            number = self._stage(feed, hidden)
            if context.task == 0:
                feed.hidden = hidden
                feed.expiry = expiry if expiry != hidden else None
        self._show(progress.watermark, number, "feed")
        if context.task == 0:
            self._collector.emit(progress.watermark, stream=POSITION)
            self._save(records, component, progress, retain=plan.retain)
            wake = side.rule.wake(progress, arrivals, context.stamp, None)
            if wake is not None:
                context.wake_at(wake)

    def _stage(self, feed: TaskFeed, hidden: int | None) -> int:
        """Stage the rows that have a key and have not expired already; return their number."""
        side = self.plan.side
        assert side.side.id is not None
        form, number = RowForm(side.fields, side.side.key, side.side.id), 0
        for chunk in self.chunks:
            rows = form.staged(chunk.values, chunk.times if chunk.times is not None else np.zeros(0, np.int64))
            wanted = keyed(chunk, side)
            if hidden is not None:
                assert chunk.times is not None
                wanted = wanted & (chunk.times >= hidden)
            if not wanted.all():
                rows = rows.filter(pa.array(wanted))
            if rows.num_rows:
                feed.put(form, rows)
                number += rows.num_rows
        return number


def checked_store(kind: str, store: Any) -> Any:
    """Return `store`; raise `InputError` if it lacks a method of `JoinStore`."""
    missing = [name for name in ("put_many", "get_many", "expire") if not callable(getattr(store, name, None))]
    if missing or isinstance(store, type):
        what = f"the class {store.__name__}" if isinstance(store, type) else f"an object of type {type(store).__name__}"
        raise InputError(f"{kind}: store: expected a JoinStore, got {what}; pass an object such as MemoryStore()")
    return store


def checked_size(kind: str, size: Any) -> int:
    """Return a batch size; raise `InputError` unless it is a whole number, at least 1."""
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise InputError(f"{kind}: batch_size: expected a whole number, at least 1, got {size!r}")
    return size
