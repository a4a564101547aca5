"""SQL joins of rows in memory: keys as numbers, pairs of rows with equal keys, and chains of inner and left joins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import numpy as np

from txstorm.keys import canonical_value, plain
from txstorm.row_order import Numbers

MISSING = -1
"""Index of a row that is missing in a left join, and number of a key that matches nothing."""


@dataclass(frozen=True)
class Step:
    """One join of a chain: `stream` is joined to `other`; `left` keeps the rows without a match."""

    stream: str
    other: str
    left: bool


def numbered_keys(columns: Mapping[str, Iterable[Any]]) -> dict[str, Numbers]:
    """Number the keys of several columns: equal keys, of the same type, have equal numbers; None has `MISSING`.

    Raises:
        StateError: a value has a type that cannot be a key.
    """
    known: dict[Any, int] = {None: MISSING}
    number = known.setdefault
    return {
        name: np.fromiter([number(one if type(one) in _PLAIN else _other(one), len(known)) for one in values], np.int64)
        for name, values in columns.items()
    }


def _other(value: Any) -> Any:
    value = value if type(value) in _TAGGED else plain(value)
    return value if type(value) in _PLAIN else canonical_value(value)


_PLAIN = frozenset({str, int, type(None)})
"""Types whose values differ from those of all other keys as they are."""
_TAGGED = frozenset({bool, float, bytes, date, datetime, Decimal})
"""Types of other keys, which are known by their bytes."""


def pairs(probe: Numbers, build: Numbers, *, keep: bool) -> tuple[Numbers, Numbers]:
    """Return the indices of rows with equal keys, ordered by `probe`, then `build`.

    Args:
        probe: the numbers of the keys of the rows that are joined.
        build: the numbers of the keys of the rows that they are joined with.
        keep: whether a row of `probe` without a match is returned, once, with `MISSING`.
    """
    order = np.argsort(build, kind="stable")
    keys = build[order]
    low, high = (np.searchsorted(keys, probe, side) for side in ("left", "right"))
    found = np.where(probe == MISSING, 0, high - low)
    times = np.maximum(found, 1) if keep else found
    left = np.repeat(np.arange(len(probe)), times)
    within = np.arange(len(left)) - np.repeat(np.cumsum(times) - times, times)
    if not keep:
        return left, order[low[left] + within]
    right = np.full(len(left), MISSING, np.int64)
    there = found[left] > 0
    right[there] = order[(low[left] + within)[there]]
    return left, right


def chain(first: str, steps: Sequence[Step], keys: Mapping[str, Numbers]) -> dict[str, Numbers]:
    """Join the streams one after the other, as SQL does; return stream → the index of its row in each result row.

    Args:
        first: the stream that the chain begins with.
        steps: the joins.
        keys: the numbers of the keys of each stream's rows.
    """
    rows = {first: np.arange(len(keys[first]), dtype=np.int64)}
    for step in steps:
        at = rows[step.other]
        of_other = keys[step.other]
        probe = np.full(len(at), MISSING, np.int64)
        probe[at != MISSING] = of_other[at[at != MISSING]]
        left, right = pairs(probe, keys[step.stream], keep=step.left)
        rows = {name: some[left] for name, some in rows.items()}
        rows[step.stream] = right
    return rows
