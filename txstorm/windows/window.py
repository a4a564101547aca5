"""Tuple window: one window as the user's code sees it, read from the buffer only as far as it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from functools import partial
from itertools import chain, islice
from typing import Any, overload

import pyarrow as pa

from txstorm.api.tuples import Tuple
from txstorm.tagged import value_of
from txstorm.windows.buffer import TupleBuffer, TupleRange
from txstorm.windows.rules.event_time import instant
from txstorm.windows.rules.firing import Place, Window
from txstorm.windows.rules.forms import MILLISECOND

CONTENT, NEW, EXPIRED = "content", "new", "expired"
AHEAD = 256
"""Number of units whose tuples are read together: those whose windows are evaluated next."""

Span = tuple[Place, Place]


class LazyTuples(Sequence[Tuple]):
    """Tuples of a part of a window, read from the state a page at a time whenever they are iterated."""

    def __init__(self, buffer: TupleBuffer, unit: str, span: Span) -> None:
        self._pages = partial(buffer.pages, unit, *span)
        self._length = buffer.count(unit, *span)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Tuple]:
        return chain.from_iterable(self._pages())

    @overload
    def __getitem__(self, index: int) -> Tuple: ...

    @overload
    def __getitem__(self, index: slice) -> list[Tuple]: ...

    def __getitem__(self, index: int | slice) -> Tuple | list[Tuple]:
        wanted = range(self._length)[index]
        if isinstance(wanted, int):
            return next(islice(self, wanted, None))
        low, high = (min(wanted), max(wanted) + 1) if len(wanted) else (0, 0)
        some = list(islice(self, low, high))
        return [some[number - low] for number in wanted]


class WindowReader:
    """Reads the tuples of all windows that a task fires in a transaction, each only once.

    Args:
        buffer: the task's tuples.
        fired: unit and window, in the order of evaluation.
        in_memory: number of tuples of a window that are held in memory; None: all.
    """

    def __init__(self, buffer: TupleBuffer, fired: Sequence[tuple[str, Window]], in_memory: int | None = None) -> None:
        self._buffer = buffer
        self._in_memory = in_memory
        self._units = list(dict.fromkeys(unit for unit, _ in fired))
        self._index = {unit: number for number, unit in enumerate(self._units)}
        self._spans: dict[str, dict[str, Span]] = {unit: {} for unit in self._units}
        for unit, window in fired:
            for part, (low, high) in parts_of(window).items():
                first, last = self._spans[unit].get(part, (low, high))
                self._spans[unit][part] = min(first, low), max(last, high)
        self._loaded: dict[tuple[str, str], TupleRange] = {}

    def read(self, unit: str, part: str, window: Window) -> tuple[TupleRange, Place, Place]:
        """Return a range that has the tuples of a part of a window, and the places between which they are."""
        low, high = parts_of(window)[part]
        whole = self._loaded.get((unit, CONTENT)) if part == NEW else None
        found = whole or self._loaded.get((unit, part))
        if found is None:
            number = self._index[unit]
            group = self._units[number : number + AHEAD]
            ranges = self._buffer.ranges({one: self._spans[one][part] for one in group})
            self._loaded.update({(one, part): loaded for one, loaded in ranges.items()})
            found = ranges[unit]
        return found, low, high

    def too_many(self, unit: str, part: str, window: Window) -> LazyTuples | None:
        """Return the tuples of a part of a window if there are more than may be held in memory."""
        low, high = parts_of(window)[part]
        if self._in_memory is None or len(self._buffer.oldest(unit, low, self._in_memory + 1).times) <= self._in_memory:
            return None
        lazily = LazyTuples(self._buffer, unit, (low, high))
        return lazily if len(lazily) > self._in_memory else None


def parts_of(window: Window) -> dict[str, Span]:
    """Return the parts of a window's tuples that can be read, each with the places between which they are."""
    return {CONTENT: (window.low, window.high), NEW: window.new, EXPIRED: (window.old_low, window.low)}


class TupleWindow:
    """One evaluation of a window; Storm's class of the same name.

    Attributes:
        key: the window's key: a value, or a tuple of values if there are several key fields; None for windows per task.
        first: whether it is the first window of its task or key.
        final: False for an early result, which other evaluations of the same window follow.
        start, end: its times, in UTC; it covers (start, end], or [start, end) if it is a session or closed on the left.
            No start (None) if its length is a count.
    """

    def __init__(
        self,
        reader: WindowReader,
        unit: str,
        window: Window,
        *,
        keyed: bool,
        evictor: Callable[[Any], Any] | None = None,
    ) -> None:
        self._reader = reader
        self._unit = unit
        self._window = window
        self._evictor = evictor
        self._kept: Sequence[Tuple] | None = None
        values = tuple(value_of(unit)) if keyed else ()
        self.key: Any = None if not keyed else values[0] if len(values) == 1 else values
        self.first = window.first
        self.final = window.final

    @property
    def start(self) -> datetime | None:
        """Start of the window; None if its length is a count."""
        return None if self._window.start is None else instant(self._window.start)

    @property
    def end(self) -> datetime:
        """End of the window."""
        return instant(self._window.end)

    @property
    def start_timestamp(self) -> int | None:
        """Start of the window in milliseconds since 1970, as in Storm; None if its length is a count."""
        return None if self._window.start is None else self._window.start // MILLISECOND

    @property
    def end_timestamp(self) -> int:
        """End of the window in milliseconds since 1970, as in Storm."""
        return self._window.end // MILLISECOND

    def get(self) -> Sequence[Tuple]:
        """Return the tuples of the window, ordered by time and arrival.

        If there are more than the bolt holds in memory, the result reads them from the state as it is iterated.
        """
        if self._kept is None:
            self._kept = self._evicted(self._tuples(CONTENT))
        return self._kept

    def get_new(self) -> Sequence[Tuple]:
        """Return the tuples that were not in the previous window."""
        return self._tuples(NEW)

    def get_expired(self) -> Sequence[Tuple]:
        """Return the tuples that have expired since the previous window, also those that were in no window."""
        return self._tuples(EXPIRED)

    def __iter__(self) -> Iterator[Tuple]:
        return iter(self.get())

    @property
    def table(self) -> pa.Table:
        """The tuples of the window as an Arrow table."""
        whole = self._table(CONTENT)
        if self._evictor is None:
            return whole
        kept = {id(one) for one in self.get()}
        return whole.filter(pa.array([id(one) in kept for one in self._tuples(CONTENT)]))

    @property
    def new_table(self) -> pa.Table:
        """The tuples of `get_new` as an Arrow table."""
        return self._table(NEW)

    @property
    def expired_table(self) -> pa.Table:
        """The tuples of `get_expired` as an Arrow table."""
        return self._table(EXPIRED)

    def __repr__(self) -> str:
        start = "" if self.start is None else f"{self.start.isoformat()} to "
        key = "" if self.key is None else f" of {self.key!r}"
        return f"TupleWindow({start}{self.end.isoformat()}{key})"

    def _tuples(self, part: str) -> Sequence[Tuple]:
        lazily = self._reader.too_many(self._unit, part, self._window)
        if lazily is not None:
            return lazily
        found, low, high = self._reader.read(self._unit, part, self._window)
        return found.tuples(low, high)

    def _table(self, part: str) -> pa.Table:
        found, low, high = self._reader.read(self._unit, part, self._window)
        return found.table(low, high)

    def _evicted(self, content: Sequence[Tuple]) -> Sequence[Tuple]:
        if self._evictor is None:
            return content
        answer = self._evictor(list(content))
        known = {id(one): number for number, one in enumerate(content)}
        try:
            kept = sorted({known[id(one)] for one in answer})
        except (TypeError, KeyError):
            msg = f"the evictor returned {answer!r} for {self!r}, expected those of its tuples that stay"
            raise ValueError(msg) from None
        return [content[number] for number in kept]

    # Storm's names of the same methods.
    getNew = get_new  # noqa: N815
    getExpired = get_expired  # noqa: N815

    def getStartTimestamp(self) -> int | None:  # noqa: N802 - Storm's name
        """Storm's spelling of `start_timestamp`."""
        return self.start_timestamp

    def getEndTimestamp(self) -> int:  # noqa: N802 - Storm's name
        """Storm's spelling of `end_timestamp`."""
        return self.end_timestamp

    def getIter(self) -> Iterator[Tuple]:  # noqa: N802 - Storm's name
        """Storm's spelling of ``iter(window)``."""
        return iter(self)
