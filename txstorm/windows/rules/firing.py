"""Firing: which windows a transaction fires, and where the content of each begins and ends.

Pure. The tuples of a *unit*, a task or one of its keys, are sorted by (held time, arrival); for held times see `forms`.
The content of every window is then a range between two places, and so are the tuples that are new in it and those that
have expired since the previous one. A unit's state holds what has to be known of earlier windows; only tuples that no
window has covered yet are looked at, however many are buffered. It is one module, as all forms share places, moments
and records.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from txstorm.windows.rules.event_time import END, Times
from txstorm.windows.rules.forms import Count, WindowForm

ARRIVAL_BITS = 24
"""Number of low bits of an arrival, which number the tuples that a task receives in a txid; the rest is the txid."""
PASSED = 1 << 62
"""Bit of an arrival: the tuple came when the watermark was at its time, so it is in no window that ends there."""


class Place(NamedTuple):
    """Place in the order of tuples: a held time, and for equal ones the arrival."""

    time: int
    arrival: int


START = Place(-END, 0)
"""The place before all tuples."""


def before(time: int) -> Place:
    """Return the place before all tuples of `time`."""
    return Place(time, 0)


def behind(time: int, txid: int) -> Place:
    """Return the place behind all tuples of `time` that have arrived up to `txid`, and before later ones."""
    return Place(time, (txid + 1) << ARRIVAL_BITS)


def end_at(time: int) -> Place:
    """Return the place at which windows that end at `time` end: behind the tuples that came before the watermark."""
    return Place(time, PASSED)


class Window(NamedTuple):
    """One window that fires: its times, and the ranges of tuples in it.

    The content is [low, high); new is its part from `old_high` on; expired is [old_low, low).

    Attributes:
        start: None for windows whose length is a count.
        first: whether it is the first one of its unit.
        final: False for an early result.
    """

    start: int | None
    end: int
    low: Place
    high: Place
    old_low: Place
    old_high: Place
    first: bool
    final: bool = True

    @property
    def new(self) -> tuple[Place, Place]:
        """The range of tuples that were not in the previous window."""
        return max(self.low, self.old_high), self.high


class OpenSession(NamedTuple):
    """A session that has not ended; `changed` is the last txid that added a tuple."""

    start: int
    end: int
    changed: int


@dataclass(frozen=True)
class FiringState:
    """State of a unit, a task or a key: what later windows have to know of earlier ones.

    Attributes:
        low: tuples before it were reported as expired, or belong to no later window.
        high: the previous window's content ended there.
        covered: tuples before it have been counted, or an end has passed them.
        kept: number of tuples from `low` to `covered`; only maintained where the length is a count.
        counted: number of tuples counted since a window fired, where the slide is a count.
        newest: newest timestamp before `covered`; None if there is none.
        last_end: the end of the previous window; None if none has fired.
        open: sessions that have not ended, ascending.
        expired: ends, of those that wait, after which a key is forgotten, as its time to live was over by then.
    """

    low: Place = START
    high: Place = START
    covered: Place = START
    kept: int = 0
    counted: int = 0
    newest: int | None = None
    last_end: int | None = None
    open: tuple[OpenSession, ...] = ()
    expired: tuple[int, ...] = ()


def nothing_before(place: Place, expired: tuple[int, ...] = ()) -> FiringState:
    """Return the state of a key that has nothing before `place`: what it had was dropped."""
    return FiringState(place, place, place, expired=expired)


@dataclass(frozen=True)
class Moment:
    """The transaction that fires windows.

    Attributes:
        txid: its txid.
        passed: the time up to which earlier transactions have fired all ends; None if the watermark was undefined.
        reached: that time now: the watermark (or stamp) or, while ends wait, the last end that fires.
        keyed: whether units are keys, which are dropped when a window end finds no content.
        stamped: whether times are stamps: processing time.
        closing: at the end of input, the last watermark before it: see `Backlog.closing`; otherwise None.
        watermark: the watermark (or stamp) after the previous transaction; beyond `passed` while ends wait.
    """

    txid: int
    passed: int | None
    reached: int | None
    keyed: bool = False
    stamped: bool = False
    closing: int | None = None
    watermark: int | None = None

    def waiting_end(self, form: WindowForm) -> int | None:
        """Return the last end that the watermark had reached before, if it has not fired; otherwise None."""
        if form.step is None or self.watermark in (None, self.passed, END):
            return None
        end = _floor(self.watermark, form.step)
        return None if end == self.last_end(form.step) else end

    def last_end(self, step: int) -> int | None:
        """Return the last window end that earlier transactions have passed."""
        return self.passed if self.passed in (None, END) else _floor(self.passed, step)

    def limit(self, form: WindowForm) -> Place | None:
        """Return the place up to which this transaction counts or covers tuples; None if it cannot fire anything."""
        if self.reached is None or self.passed == END:
            return None
        if form.step is None or self.reached == END:
            return behind(self.reached, self.txid)
        end = _floor(self.reached, form.step)
        return None if end == self.last_end(form.step) else end_at(end)


class Rows(NamedTuple):
    """Sorted tuples of a unit: their held times and arrivals, and which of them fire (custom trigger)."""

    times: Times
    arrivals: Times
    fires: npt.NDArray[np.bool_] | None = None

    def place(self, i: int) -> Place:
        """Return the place of the tuple at index `i`."""
        return Place(int(self.times[i]), int(self.arrivals[i]))

    def sliced(self, first: int, last: int) -> Rows:
        """Return the tuples of a range of indices."""
        fires = None if self.fires is None else self.fires[first:last]
        return Rows(self.times[first:last], self.arrivals[first:last], fires)

    @property
    def first_times(self) -> Times:
        """The time of the first window end that can contain each tuple: later than its own where that has passed."""
        return self.times + (self.arrivals >= PASSED)


Oldest = Callable[[Place, int], Rows]
"""Returns the first tuples of a unit from a place on, that many of them."""


def fire(
    form: WindowForm, state: FiringState, moment: Moment, rows: Rows, oldest: Oldest, *, more: bool = False
) -> tuple[list[Window], FiringState]:
    """Return the windows other than sessions that a unit fires, in order, and its state afterwards.

    Args:
        form: the form of the windows.
        state: the unit's state after the previous transaction.
        moment: the transaction; its limit is not None.
        rows: the unit's tuples from `state.covered` up to the limit of the moment, those of this transaction included.
        oldest: looks up the unit's oldest tuples.
        more: whether the unit has tuples beyond the limit.
    """
    windows: list[Window] = []
    while state.expired and moment.reached is not None and state.expired[0] <= moment.reached:
        end = state.expired[0]
        inside = bisect_left(list(map(Place, rows.times.tolist(), rows.arrivals.tolist())), end_at(end))
        part = replace(moment, reached=end)
        if part.limit(form) is not None:
            more = more or inside < len(rows.times)
            windows += _fire(form, state, part, rows.sliced(0, inside), oldest, more=more)[0]
        state, rows = nothing_before(end_at(end), state.expired[1:]), rows.sliced(inside, len(rows.times))
        moment = replace(moment, passed=end)
    if moment.limit(form) is None:
        return windows, state
    made, after = _fire(form, state, moment, rows, oldest, more=more)
    return windows + made, after


def _fire(
    form: WindowForm, state: FiringState, moment: Moment, rows: Rows, oldest: Oldest, *, more: bool
) -> tuple[list[Window], FiringState]:
    """Fire windows as `fire` does, if the unit does not expire meanwhile."""
    limit = moment.limit(form)
    assert limit is not None
    covered = replace(
        state, covered=limit, newest=int(rows.times[-1]) if len(rows.times) else state.newest, kept=state.kept
    )
    if form.step is None:
        return _by_count(form, state, covered, moment, rows, oldest)
    if form.span is None:
        return _last_tuples(form, state, covered, moment, rows, oldest, more)
    return _time_ranges(form, state, covered, moment, rows)


def _time_ranges(
    form: WindowForm, state: FiringState, covered: FiringState, moment: Moment, rows: Rows
) -> tuple[list[Window], FiringState]:
    """Fire windows of a time slide whose length is a duration."""
    assert form.step is not None and form.span is not None
    step, span = form.step, form.span
    windows: list[Window] = []
    last = state
    passed = moment.last_end(step)
    times, firsts = rows.times, rows.first_times
    if state.newest is not None:
        times, firsts = (np.concatenate(([np.int64(state.newest)], of)) for of in (times, firsts))
    for end in covering_ends(times, step, span, passed, moment.reached, firsts):
        low = before(end - span + 1)
        if moment.keyed and last.last_end != end - step:
            # An end without content came before: the key was dropped there, and what it had is forgotten.
            dropped = min(low, before(end - step + 1))
            last = replace(last, low=dropped, high=dropped, last_end=None)
        high = end_at(end)
        windows.append(Window(end - span, end, low, high, last.low, last.high, last.last_end is None))
        last = replace(last, low=low, high=high, last_end=end)
    return windows, replace(covered, low=last.low, high=last.high, last_end=last.last_end)


def covering_ends(
    times: Times, step: int, span: int, passed: int | None, reached: int | None, firsts: Times | None = None
) -> Iterator[int]:
    """Yield the ends after `passed`, up to `reached`, whose windows contain one of the sorted `times`.

    `firsts`: see `Rows.first_times`; None: the times.
    """
    first = -(-(times if firsts is None else firsts) // step)
    last = (times + (span - 1)) // step
    if passed is not None:
        first = np.maximum(first, passed // step + 1)
    if reached is not None and reached != END:
        last = np.minimum(last, reached // step)
    there = first <= last
    first, last = first[there], last[there]
    if not len(first):
        return
    # Both bounds ascend, so a range that does not touch the one before begins a new run of ends.
    begins = np.concatenate(([True], first[1:] > last[:-1] + 1))
    stops = np.append(last[:-1][begins[1:]], last[-1])
    for low, high in zip(first[begins].tolist(), stops.tolist(), strict=True):
        yield from range(low * step, high * step + 1, step)


def _last_tuples(
    form: WindowForm, state: FiringState, covered: FiringState, moment: Moment, rows: Rows, oldest: Oldest, more: bool
) -> tuple[list[Window], FiringState]:
    """Fire windows of a time slide whose length is a count: every end fires once there is a tuple."""
    step = form.step
    assert step is not None and moment.reached is not None
    passed = moment.last_end(step)
    starts = [] if passed is None else [passed // step + 1]
    if not state.kept:
        starts += [-(-int(rows.first_times[0]) // step)] if len(rows.times) else []
    newest = covered.newest
    if newest is None or not starts or (not state.kept and not len(rows.times)):
        return [], covered
    stop = moment.reached // step
    if moment.reached == END or (moment.closing is not None and not more):
        stop = min(stop, max(-(-newest // step), (-END if moment.closing is None else moment.closing) // step))
    ends = [number * step for number in range(max(starts), stop + 1)]
    highs = np.searchsorted(rows.first_times, np.array(ends, np.int64), "right") + state.kept
    spots = [(end, end_at(end), int(high)) for end, high in zip(ends, highs, strict=True)]
    return _counted_windows(form, state, covered, spots, rows, oldest)


def _by_count(
    form: WindowForm, state: FiringState, covered: FiringState, moment: Moment, rows: Rows, oldest: Oldest
) -> tuple[list[Window], FiringState]:
    """Fire windows of a count slide or a custom trigger: each ends at the timestamp of the tuple that fires it."""
    times, arrivals, fires = rows
    if isinstance(form.slide, Count):
        slide = form.slide.value
        firing = np.arange(slide - 1 - state.counted, len(times), slide)
        covered = replace(covered, counted=(state.counted + len(times)) % slide)
    else:
        assert fires is not None
        firing = np.flatnonzero(fires)
    if form.span is None:
        spots = [(int(times[i]), Place(int(times[i]), int(arrivals[i]) + 1), state.kept + int(i) + 1) for i in firing]
        return _counted_windows(form, state, covered, spots, rows, oldest)
    windows, last = [], state
    for i in firing:
        end = int(times[i])
        low = before(end - form.span + 1)
        # Event time has no order among tuples of a time; among stamps, later ones have not been counted.
        high = Place(end, int(arrivals[i]) + 1) if moment.stamped else behind(end, moment.txid)
        windows.append(Window(end - form.span, end, low, high, last.low, last.high, last.last_end is None))
        last = replace(last, low=low, high=high, last_end=end)
    return windows, replace(covered, low=last.low, high=last.high, last_end=last.last_end)


def _counted_windows(
    form: WindowForm,
    state: FiringState,
    covered: FiringState,
    spots: Sequence[tuple[int, Place, int]],
    rows: Rows,
    oldest: Oldest,
) -> tuple[list[Window], FiringState]:
    """Fire windows of the last n tuples; a spot is (end, place where the content ends, number of tuples from low)."""
    assert isinstance(form.length, Count)
    kept, number = state.kept, form.length.value
    firsts = [max(high - number, 0) for _, _, high in spots]
    among_old = [first for first in firsts if 0 < first < kept]
    old = oldest(state.low, among_old[-1] + 1) if among_old else None
    windows, last = [], state
    for (end, high, _), first in zip(spots, firsts, strict=True):
        if not first:
            low = state.low
        elif first < kept:
            assert old is not None
            low = old.place(first)
        else:
            low = rows.place(first - kept)
        windows.append(Window(None, end, low, high, last.low, last.high, last.last_end is None))
        last = replace(last, low=low, high=high, last_end=end)
    left = kept + len(rows.times) - (firsts[-1] if firsts else 0)
    return windows, replace(covered, low=last.low, high=last.high, last_end=last.last_end, kept=left)


def needed_from(form: WindowForm, state: FiringState, watermark: int | None) -> Place:
    """Return the place from which on tuples of a unit can still be needed, by the watermark after the last transaction.

    Needed are tuples of which an end after the watermark, or one that it has not let be counted, takes the first notice
    or, where the length is a duration, any.
    """
    forgotten = end_at(state.expired[-1]) if state.expired else START
    if form.step is None or watermark is None:
        return max(state.covered, forgotten)
    end = _floor(min(watermark, END - 1), form.step)
    if form.span is None:
        return max(state.covered, end_at(end), forgotten)
    return max(before(end + form.step - form.span + 1), state.low, forgotten)


def is_needed(form: WindowForm, state: FiringState, watermark: int | None, rows: Rows) -> bool:
    """Return whether an end will need tuples of a unit that only a time to live would drop before.

    `rows`: the unit's tuples from `needed_from` on.
    """
    if form.is_session:
        return bool(state.open)
    if form.step is None or form.span is None or watermark is None:
        return bool(len(rows.times))
    ends = covering_ends(rows.times, form.step, form.span, watermark, None, rows.first_times)
    return next(ends, None) is not None


def merge_sessions(open_: Sequence[OpenSession], times: Times, ends: Times, txid: int) -> list[OpenSession]:
    """Add tuples, sorted by time and each with the end of its gap, to open sessions; return the sessions, ascending."""
    if not len(times):
        return list(open_)
    starts = np.concatenate((np.array([one.start for one in open_], np.int64), times))
    stops = np.concatenate((np.array([one.end for one in open_], np.int64), ends))
    changed = np.concatenate((np.array([one.changed for one in open_], np.int64), np.full(len(times), txid)))
    order = np.argsort(starts, kind="stable")
    starts, stops, changed = starts[order], stops[order], changed[order]
    reach = np.maximum.accumulate(stops)
    begins = np.flatnonzero(np.concatenate(([True], starts[1:] >= reach[:-1])))
    lasts = np.append(begins[1:], len(starts)) - 1
    changes = np.maximum.reduceat(changed, begins)
    return [
        OpenSession(*one) for one in zip(starts[begins].tolist(), reach[lasts].tolist(), changes.tolist(), strict=True)
    ]


def fire_sessions(state: FiringState, moment: Moment, times: Times, ends: Times) -> tuple[list[Window], FiringState]:
    """Return the sessions of a unit that end, in order, and its state afterwards.

    Args:
        state: the unit's state after the previous transaction.
        moment: the transaction.
        times: the timestamps of the tuples that it adds, sorted.
        ends: for each of them, the time at which its gap ends.
    """
    merged = merge_sessions(state.open, times, ends, moment.txid)
    number = 0 if moment.reached is None else sum(one.end <= moment.reached for one in merged)
    left = tuple(merged[number:])
    low = before(left[0].start) if left else state.low if not number else before(merged[number - 1].end)
    return [session_window(one) for one in merged[:number]], replace(state, open=left, low=low)


def session_window(session: OpenSession, *, final: bool = True) -> Window:
    """Return the window of a session: all of it is new, nothing has expired."""
    low, high = before(session.start), before(session.end)
    return Window(session.start, session.end, low, high, low, low, True, final)


def early(form: WindowForm, state: FiringState, moment: Moment, rows: Rows, since: int, oldest: Oldest) -> list[Window]:
    """Return the open windows of a unit that got tuples after txid `since`, as they are now.

    Unlike `fire` it changes no record: what later windows report as new or expired stays the same.

    Args:
        form: the form of the windows; not one that slides by count or by a trigger.
        state: the unit's state after this transaction.
        moment: the transaction.
        rows: the unit's tuples from `earliest_open` on; not used for sessions.
        since: the txid of the previous early evaluation.
        oldest: looks up the unit's oldest tuples.
    """
    if form.is_session:
        return [session_window(one, final=False) for one in state.open if one.changed > since]
    places = list(map(Place, rows.times.tolist(), rows.arrivals.tolist()))
    changed = [one for one in places if one.arrival % PASSED >= (since + 1) << ARRIVAL_BITS]
    if not changed or moment.reached == END:
        return []
    pending = bisect_left(places, state.covered)
    now = replace(moment, passed=moment.reached, reached=END)
    windows, _ = fire(form, state, now, Rows(rows.times[pending:], rows.arrivals[pending:]), oldest)
    got = [one for one in windows if bisect_left(changed, one.low) < bisect_left(changed, one.high)]
    low, high = state.low, state.high
    if moment.keyed and state.last_end is None and form.span is not None and form.step is not None:
        # An end without content has dropped what the key had. Where windows overlap, that is what has been covered: a
        # tuple at the time of the end may have come later. Otherwise, ends may have passed without a look at the key.
        end = now.last_end(form.step)
        dropped = state.covered if form.span > form.step or end is None else before(end + 1)
        low = high = max(low, dropped)
    return [one._replace(old_low=low, old_high=high, first=state.last_end is None, final=False) for one in got]


def earliest_open(form: WindowForm, state: FiringState, moment: Moment) -> Place:
    """Return the place before all tuples that windows still open can contain; for windows that slide by time."""
    if form.span is None or form.step is None or moment.reached is None:
        return state.low
    return max(state.low, before(_floor(moment.reached, form.step) + form.step - form.span + 1))


def _floor(time: int | None, step: int) -> int:
    assert time is not None
    return time // step * step
