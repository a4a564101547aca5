"""A database of the user's own that committers change in `finish_batch`, long before anything is decided."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial

from txstorm.storage.rows.semantics import Row, opaque, transactional
from txstorm.storage.tables.intent import TxidRecord

SLOTS = 3
"""Keys per partition: an offset counts for the key of its remainder, so that another batch has other keys."""

Key = tuple[int, int]


class Database:
    """Rows of (value, txid, prev), under the shipped rule of updates; each row is written by itself."""

    def __init__(self, *, is_opaque: bool) -> None:
        self._opaque = is_opaque
        self._rows: dict[Key, Row[int]] = {}

    def apply(self, record: TxidRecord) -> Iterator[Key]:
        """Count the offsets of a batch, key by key; the caller may die after each of them.

        What an earlier attempt with other content has changed, and this one does not, goes back to what it was.
        """
        counts = _counts(record.extents)
        rule = opaque if self._opaque else transactional
        gone = [key for key, row in self._rows.items() if row.txid == record.txid and key not in counts]
        for key in [*gone, *counts]:
            self._rows[key] = rule(self._rows.get(key), record.txid, partial(_more, counts[key]))
            yield key

    def wrong(self, ends: Sequence[int]) -> str | None:
        """The first key that does not hold what all offsets up to `ends` give, if there is one."""
        expected = _counts([[0, end] for end in ends])
        found = {key: row.value for key, row in self._rows.items() if row.value}
        wrong = next((key for key in {**expected, **found} if expected[key] != found.get(key)), None)
        return None if wrong is None else f"key {wrong} holds {found.get(wrong)}, not {expected[wrong]}"


def _more(count: int, old: int | None) -> int:
    return (old or 0) + count


def _counts(extents: Sequence[Sequence[int]]) -> Counter[Key]:
    return Counter((part, at % SLOTS) for part, (start, end) in enumerate(extents) for at in range(start, end))
