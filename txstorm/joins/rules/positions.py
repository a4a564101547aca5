"""Positions of an interval join: how far each side has come, which left rows are released, and which right rows expire.

A position is a watermark with one input, so partitions, idle ones, ended sources and frontiers mean what they mean for
windows. Times are UTC microseconds; `END` is later than all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from txstorm.windows.rules.event_time import END, Facts, Progress, WatermarkRule


@dataclass(frozen=True)
class Bounds:
    """Bounds of a join, in microseconds: left.time - before <= right.time <= left.time + after."""

    before: int
    after: int = 0

    def released(self, position: int | None) -> int | None:
        """Return the time before which left rows are released at a right position; None: no row is."""
        return position if position is None or position == END else position - self.after

    def expired(self, left: int | None, oldest: int | None) -> int | None:
        """Return the time before which right rows expire; None: no row does.

        Args:
            left: how far the left partitions are; None while one has no data.
            oldest: the time of the oldest pending left row; None if there is none.
        """
        if left is None:
            return None
        low = left if oldest is None else min(left, oldest)
        return low if low == END else low - self.before

    def frontier(self, right: int | None, left: int | None) -> int | None:
        """Return the time that all later results exceed, by how far both sides are; None while it is undefined."""
        released = self.released(right)
        if released is None or left is None:
            return None
        low = min(released, left)
        return low if low == END else low - 1


@dataclass(frozen=True)
class Arrivals:
    """Arrivals of one side in a transaction.

    Attributes:
        newest: (0, partition) → the newest time that has come of it.
        facts: the facts about its sources.
        caught_up: whether all of its sources have been read to their ends.
    """

    newest: Mapping[tuple[int, str], int]
    facts: Facts
    caught_up: bool = False


@dataclass(frozen=True)
class PositionRule:
    """Rule by which the position of a side follows its partitions.

    Attributes:
        watermark: lag and idle time.
        grace: how far behind the present a side that is read to its end may still be; None: its partitions alone count.
    """

    watermark: WatermarkRule
    grace: int | None = None

    @property
    def by_clock(self) -> bool:
        """Whether the time between transactions moves the position."""
        return self.grace is not None or self.watermark.idle is not None

    def after(self, progress: Progress, arrivals: Arrivals, stamp: int) -> Progress:
        """Return the progress of the side after a transaction; its watermark is the position."""
        after = self.watermark.after(progress, arrivals.newest, stamp, arrivals.facts)
        if self.grace is None or not arrivals.caught_up:
            return after
        present, reached = stamp - self.grace, after.watermark
        return (
            after if reached is not None and reached >= present else replace(after, watermark=present, advanced=stamp)
        )

    def reached(self, progress: Progress, arrivals: Arrivals, stamp: int) -> int | None:
        """Return how far the partitions of the side are now: less than its position if one has started late."""
        return self.watermark.reached(progress, stamp, arrivals.facts)

    def wake(self, progress: Progress, arrivals: Arrivals, stamp: int, waits_for: int | None) -> int | None:
        """Return the next stamp at which the position may advance without data; None if there is none.

        `waits_for`: the position that the oldest pending row waits for; None if there is none.
        """
        if progress.watermark == END:
            return None
        due = [self.watermark.next_idle(progress, stamp, arrivals.facts)]
        if self.grace is not None and arrivals.caught_up and waits_for is not None:
            due.append(max(waits_for + self.grace, stamp + 1))
        return min((one for one in due if one is not None), default=None)

    def held_back_by(self, progress: Progress, arrivals: Arrivals, stamp: int) -> tuple[str, int] | None:
        """Return the partition with the lowest newest time, and the stamp of its last data; None if there is none.

        A partition without data comes first, with the stamp of the first transaction; idle ones do not count.
        """
        if progress.watermark == END or 0 in arrivals.facts.frontiers:
            return None
        known = dict[str, tuple[int, int]]()
        for partition in self.watermark.active_partitions(0, progress, stamp, arrivals.facts):
            newest = progress.newest.get((0, partition))
            first = (-END, stamp if progress.first_stamp is None else progress.first_stamp)
            known[partition] = first if newest is None else (newest.time, newest.stamp)
        if not known:
            return None
        lowest = min(known, key=lambda one: (known[one][0], one))
        return lowest, known[lowest][1]
