"""Backlog of window ends: which ends of a time slide a transaction fires, if a limit leaves some to the next ones.

Pure. The times of tuples are held times, see `forms`. Ends are multiples of the slide; an end's number is its time
divided by the slide. The ends that are due are runs of such numbers, never a list of ends, so a gap between two tuples
costs nothing, however long it is. All tasks compute the same backlog, from the times of all tuples of the component.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from txstorm.windows.rules.event_time import END, Times
from txstorm.windows.rules.forms import WindowForm

Run = tuple[int, int]
"""The first and the last of consecutive numbers of ends, or of consecutive times."""
MOST_RUNS = 64
"""Number of runs that a backlog has at most; beyond it, those with the least distance become one."""
MANY = 10**6
"""Number of ends from which on a backlog is worth a warning."""


@dataclass(frozen=True)
class Backlog:
    """Ends of a component that no transaction has fired, as of a transaction.

    Attributes:
        fired: the time up to which all ends have fired: the watermark or, while ends wait, the last end that fired.
        runs: the numbers of the ends after it whose windows have tuples; where the length is a count, every end from
            the first of them on has. None: unknown, in a record written before there were backlogs.
        waiting: number of ends that the watermark has reached and that have not fired.
        held: the watermark, before the end of input, after the last transaction that left ends waiting; None if none
            has.
        since: while ends wait, the held time of the oldest tuple of the first of them when they began to; if it came
            before, the end before that.
    """

    fired: int | None = None
    runs: tuple[Run, ...] | None = ()
    waiting: int = 0
    held: int | None = None
    since: int | None = None

    def after(self, form: WindowForm, times: Iterable[Run], watermark: int | None, limit: int | None) -> Backlog:
        """Return the backlog after a transaction.

        Args:
            form: the form of the windows; only ends of a time slide can wait.
            times: runs of times that the tuples of the transaction have.
            watermark: the watermark after it.
            limit: number of ends that it fires at most; None: no limit.
        """
        step = form.step
        if step is None or self.fired == END:
            return Backlog(END if self.fired == END else watermark)
        times = list(times)
        runs = merged([*self._known(form), *_ends(form, times)])
        if watermark is None:
            return replace(self, runs=runs)
        high = END if watermark == END else watermark // step
        due = self._due(form, runs, high, self.closing(watermark))
        number = sum(last - first + 1 for first, last in due)
        if limit is None or number <= limit:
            rest = runs if form.span is None else _beyond(runs, high)
            return Backlog(watermark, () if watermark == END else rest, 0, self.held)
        fired = _number_at(due, limit)
        rest = runs if form.span is None else _beyond(runs, fired)
        held, since = self.closing(watermark) if watermark == END else watermark, self.since
        if not self.waiting:
            end = due[0][0] * step
            since = min((low for low, _ in times if end - step < low <= end), default=end - step)
        return Backlog(fired * step, rest, number - limit, held, since)

    def closing(self, watermark: int | None) -> int | None:
        """Return the last watermark before the end of input, after which tasks and keys fire up to their newest tuples.

        `watermark`: that of the transaction after this one; None is returned unless it is the end of input.
        """
        before = self.held if self.waiting else self.fired
        return None if watermark != END else -END if before is None else before

    def _known(self, form: WindowForm) -> Sequence[Run]:
        """Return the runs so far; of tuples before there were any, only the ends that a length of a count repeats.

        Other ends of those tuples fire with the ends that are known, and count for nothing.
        """
        if self.runs is not None:
            return self.runs
        assert form.step is not None
        return () if self.fired is None or form.span is not None else [(self.fired // form.step + 1,) * 2]

    def _due(self, form: WindowForm, runs: Sequence[Run], high: int, closing: int | None) -> list[Run]:
        """Return the ends after those that have fired, up to number `high`; `closing`: see there."""
        assert form.step is not None
        if form.span is None and runs:
            runs = [(runs[0][0], high if closing is None else max(runs[-1][1], closing // form.step))]
        low = -END if self.fired is None else self.fired // form.step + 1
        cut = [(max(first, low), min(last, high)) for first, last in runs]
        return [(first, last) for first, last in cut if first <= last]

    def stored(self) -> Any:
        """Return the backlog as JSON; see `of`."""
        return [self.fired, self.runs, self.waiting, self.held, self.since]

    @classmethod
    def of(cls, stored: Any) -> Backlog:
        """Return a backlog that was stored."""
        fired, runs, waiting, held, since = stored
        return cls(fired, None if runs is None else tuple((first, last) for first, last in runs), waiting, held, since)


def merged(runs: Sequence[Run], most: int = MOST_RUNS) -> tuple[Run, ...]:
    """Return ascending runs that touch each other in no place, with all numbers of `runs`, and few others if any."""
    made: list[list[int]] = []
    for first, last in sorted(runs):
        if made and first <= made[-1][1] + 1:
            made[-1][1] = max(made[-1][1], last)
        else:
            made.append([first, last])
    if len(made) > most:
        by_gap = sorted(range(1, len(made)), key=lambda at: made[at][0] - made[at - 1][1])
        begins = [0, *sorted(by_gap[-most + 1 :])]
        ends = [*(at - 1 for at in begins[1:]), len(made) - 1]
        return tuple((made[first][0], made[last][1]) for first, last in zip(begins, ends, strict=True))
    return tuple((first, last) for first, last in made)


def _ends(form: WindowForm, times: Iterable[Run]) -> list[Run]:
    """Return the numbers of the ends whose windows cover one of the times; for a count, of the first such end."""
    step, span = form.step, form.span
    assert step is not None
    found = [(-(-low // step), -(-high // step) if span is None else (high + span - 1) // step) for low, high in times]
    return [(first, last) for first, last in found if first <= last]


def _beyond(runs: Iterable[Run], number: int) -> tuple[Run, ...]:
    return tuple((max(first, number + 1), last) for first, last in runs if last > number)


def _number_at(runs: Iterable[Run], count: int) -> int:
    """Return the number of the end at place `count`, from 1 on, in runs that have more."""
    for first, last in runs:
        if count <= last - first + 1:
            return first + count - 1
        count -= last - first + 1
    raise AssertionError(count)


def time_runs(form: WindowForm, times: Times) -> tuple[Run, ...]:
    """Return runs of times in which tuples lie so close that no end without content is between them."""
    step, span = form.step, form.span
    if step is None or not len(times):
        return ()
    low, high = int(times.min()), int(times.max())
    reach = step if span is None else span
    if span is None or high - low < min(reach, step) or (reach >= step and high - low < reach):
        return ((low, high),)
    numbers = -(-times // step)
    if span < step:  # windows with holes between them: only tuples in a window count
        numbers = numbers[times > numbers * step - span]
    if not len(numbers):
        return ()
    least = numbers.min()
    few = numbers.max() - least < 4 * len(numbers)  # then counting is faster than sorting
    ends = np.flatnonzero(np.bincount(numbers - least)) + least if few else np.unique(numbers)
    # A run of ends goes on as long as the windows of one reach the next.
    breaks = np.flatnonzero(np.diff(ends) > max(span // step + bool(span % step), 1))
    firsts, lasts = ends[np.r_[0, breaks + 1]].tolist(), ends[np.r_[breaks, len(ends) - 1]].tolist()
    runs = merged([(first, last) for first, last in zip(firsts, lasts, strict=True)])
    made = [((first - 1) * step + 1, last * step) for first, last in runs]
    if span >= step:
        made[0], made[-1] = (low, made[0][1]), (made[-1][0], high)
    return tuple(made)
