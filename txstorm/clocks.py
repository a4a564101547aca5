"""Vector clocks of a source: how far each of its partitions has been read, as Hailstorm has them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from txstorm.errors import InputError

NOTHING = -1
"""The offset of a partition of which a clock knows nothing."""


class Clock(Mapping[str, int]):
    """A vector clock: partition → the last offset counted; immutable, sorted by partition.

    The clock of a transaction holds everything that was read up to it. A partition that gave nothing keeps its offset;
    one of which nothing was read yet has its first offset − 1.

    ``a > b`` and ``a >= b`` hold if both have the same partitions, and `a` is greater (or equal) in every one of them;
    clocks of different partitions are not comparable, so both are false.

    Example::

        Clock({"clicks-0": 41, "clicks-1": 7}) >= Clock({"clicks-0": 40, "clicks-1": 7})

    Args:
        offsets: partition → offset, an int of −1 or more.

    Raises:
        InputError: a partition is no str, or an offset no such int.
    """

    __slots__ = ("_offsets",)

    def __init__(self, offsets: Mapping[str, int] = {}) -> None:
        wrong = [(name, offset) for name, offset in offsets.items() if not _fits(name, offset)]
        if wrong:
            name, offset = wrong[0]
            raise InputError(
                f"clock: partition {name!r} has offset {offset!r}; give names of partitions with integers of -1 or more"
            )
        self._offsets = dict(sorted(offsets.items()))

    @classmethod
    def parse(cls, text: str) -> Clock:
        """Read a clock from JSON: an object of integers. Raises `InputError` if it is none."""
        try:
            found = json.loads(text)
        except ValueError as error:
            found = error
        if not isinstance(found, dict):
            got = str(found) if isinstance(found, ValueError) else json.dumps(found)[:80]
            msg = f'clock {text[:80]!r}: expected a JSON object such as {{"clicks-0": 41, "clicks-1": 7}}, got {got}'
            raise InputError(msg)
        return cls(found)

    def __getitem__(self, partition: str) -> int:
        return self._offsets[partition]

    def __iter__(self) -> Iterator[str]:
        return iter(self._offsets)

    def __len__(self) -> int:
        return len(self._offsets)

    def __hash__(self) -> int:
        return hash(tuple(self._offsets.items()))

    def __ge__(self, other: Clock) -> bool:
        return self.keys() == other.keys() and all(self[name] >= other[name] for name in self)

    def __gt__(self, other: Clock) -> bool:
        return self.keys() == other.keys() and all(self[name] > other[name] for name in self)

    def __le__(self, other: Clock) -> bool:
        return other >= self

    def __lt__(self, other: Clock) -> bool:
        return other > self

    def reaches(self, wanted: Mapping[str, int]) -> bool:
        """Return whether every partition of `wanted` is here, with its offset or a greater one."""
        return all(name in self and self[name] >= offset for name, offset in wanted.items())

    def __str__(self) -> str:
        """Return the clock as a JSON object, sorted by partition, which `parse` reads."""
        return json.dumps(self._offsets)

    def __repr__(self) -> str:
        return f"Clock({self._offsets})"


def low_water_mark(clocks: Sequence[Mapping[str, int]], reach: Sequence[Iterable[str]] | None = None) -> Clock:
    """Return the low water mark of a component: per partition, the least of the clocks of its upstreams.

    What lies at or before it has come from all of them.

    Args:
        clocks: the clock of each upstream.
        reach: for each upstream, the partitions whose records can come through it; by default those in its clock. One
            that its clock lacks counts as −1 there.

    Raises:
        InputError: `reach` does not have as many elements as `clocks`.
    """
    reached = [set(clock) for clock in clocks] if reach is None else [set(one) for one in reach]
    if len(reached) != len(clocks):
        msg = f"low_water_mark: {len(clocks)} clocks, but {len(reached)} sets of partitions in reach; give one for each"
        raise InputError(msg)
    least: dict[str, int] = {}
    for clock, partitions in zip(clocks, reached, strict=True):
        for name in partitions:
            offset = clock.get(name, NOTHING)
            least[name] = min(offset, least.get(name, offset))
    return Clock(least)


def _fits(name: Any, offset: Any) -> bool:
    return isinstance(name, str) and isinstance(offset, int) and not isinstance(offset, bool) and offset >= NOTHING


def natural(name: str) -> list[Any]:
    """Return a key by which names of partitions are sorted: ``t-10`` comes behind ``t-9``."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"([0-9]+)", name)]
