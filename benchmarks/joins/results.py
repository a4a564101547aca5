"""Results of the join benchmarks by numpy, and their digests.

A result row is a pair of ids, with NONE for the right one of an unmatched left row. Results are compared by a digest:
the number of rows, the number of pairs, and a sum of products of both ids. Only left rows count that are older than the
right side's last position, whether or not a side also releases the others at the end of its input.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.joins.rows import BEFORE_MS, LAG_MS, LEFT, RIGHT, SIDES, START_MS, Column, read
from benchmarks.nexmark.queries import DIGEST

NONE = -1
"""The right id of an unmatched left row."""
MODULUS = 998_244_353
_AT_ONCE = 200_000
"""Left rows that are joined at once by numpy."""
_TAIL = 10_000
"""Number of last rows, of which some are not late: they are the newest of all."""


def until(source: Mapping[str, Any], rows: int) -> int:
    """Return the position in milliseconds after `rows` rows of both sides: left rows from there on do not count."""
    last = range(max(rows // 2 - _TAIL, 0), rows // 2)
    return min(int(read(source, side, last)[1].max()) for side in SIDES) - LAG_MS


class RightRows:
    """Right rows sorted by key and time, to find those of a key within a range of times by two binary searches."""

    def __init__(self, keys: Column, times: Column) -> None:
        self._least = int(times.min()) if len(times) else START_MS
        self._span = (int(times.max()) - self._least if len(times) else 0) + 3
        codes = keys.astype(np.int64) * self._span + times - self._least + 1
        order = np.argsort(codes, kind="stable")
        self._codes, self.order = codes[order], order

    def matches(self, keys: Column, times: Column) -> tuple[Column, Column]:
        """Return, for each left row, the first and one after the last of its matches in sorted order."""
        base = keys.astype(np.int64) * self._span
        lower = np.clip(times - BEFORE_MS - self._least + 1, 0, self._span - 1)
        upper = np.clip(times - self._least + 1, 0, self._span - 1)
        return np.searchsorted(self._codes, base + lower), np.searchsorted(self._codes, base + upper, "right")


def pairs(first: Column, last: Column) -> tuple[Column, Column]:
    """Return positions of left rows and of sorted right rows: one pair for each match, with NONE for a row without."""
    counts = last - first
    made = np.maximum(counts, 1)
    left = np.repeat(np.arange(len(made)), made)
    right = np.arange(len(left)) - np.repeat(np.cumsum(made) - made, made) + np.repeat(first, made)
    right[np.repeat(counts == 0, made)] = NONE
    return left, right


def expected(source: Mapping[str, Any], rows: int) -> Iterator[tuple[Column, Column]]:
    """Yield the ids of the left join of the first `rows` rows of both sides, in parts."""
    keys, times = read(source, RIGHT, range(rows // 2))
    found, limit = RightRows(keys, times), until(source, rows)
    for begin in range(0, rows // 2, _AT_ONCE):
        keys, times = read(source, LEFT, range(begin, min(begin + _AT_ONCE, rows // 2)))
        ids = np.flatnonzero(times < limit)
        left, right = pairs(*found.matches(keys[ids], times[ids]))
        yield ids[left] + begin, np.where(right == NONE, NONE, found.order[right])


def digest(left: Column, right: Column) -> list[int]:
    """Return the digest of result rows; digests of parts add up."""
    mixed = (left.astype(np.int64) + 1) * (right.astype(np.int64) + 2) % MODULUS
    return [len(left), int((right != NONE).sum()), int(mixed.sum())]


def total(parts: Iterator[tuple[Column, Column]]) -> list[int]:
    """Return the digest of all parts."""
    return np.sum([digest(*one) for one in parts] or [[0, 0, 0]], axis=0).tolist()  # type: ignore[no-any-return]


def counted(source: Mapping[str, Any], rows: int, left: Column, right: Column) -> list[int]:
    """Return the digest of the result rows of those left rows that count; the others may be among them."""
    counts = read(source, LEFT, range(rows // 2))[1] < until(source, rows)
    chosen = counts[left]
    return digest(left[chosen], right[chosen])


def leave_digest(directory: str, found: list[int]) -> None:
    """Write the digest of a side's results for the comparison."""
    (Path(directory) / DIGEST).write_text(json.dumps(found))
