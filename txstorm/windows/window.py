"""Tuple window: one window as the user's code sees it, read from the buffer only as far as it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import pyarrow as pa

from txstorm.api.tuples import Tuple
from txstorm.tagged import value_of
from txstorm.windows.buffer import TupleBuffer, TupleRange
from txstorm.windows.event_time import instant
from txstorm.windows.firing import Place, Window
from txstorm.windows.forms import MILLISECOND


class UnitWindows:
    """All windows that one unit fires in a transaction, which share what they read of the buffer."""

    def __init__(self, buffer: TupleBuffer, unit: str, windows: list[Window]) -> None:
        self._buffer = buffer
        self._unit = unit
        self._last = max((one.high for one in windows), default=None)
        self._last_low = max((one.low for one in windows), default=None)
        self._loaded: list[tuple[Place, Place, TupleRange]] = []

    def content(self, low: Place, high: Place) -> TupleRange:
        """Return a range that has at least the tuples between two places of the content of a window."""
        return self._range(low, high, self._last)

    def expired(self, low: Place, high: Place) -> TupleRange:
        """Return a range that has at least the tuples between two places before the content of a window."""
        return self._range(low, high, self._last_low)

    def _range(self, low: Place, high: Place, ahead: Place | None) -> TupleRange:
        for first, last, loaded in self._loaded:
            if first <= low and high <= last:
                return loaded
        # Later windows of this transaction follow: what they read is read together.
        high = high if ahead is None else max(high, ahead)
        loaded = self._buffer.range(self._unit, low, high)
        self._loaded.append((low, high, loaded))
        return loaded


class TupleWindow:
    """One evaluation of a window; Storm's class of the same name.

    Attributes:
        key: the window's key: a value, or a tuple of values if there are several key fields; None for windows per task.
        first: whether it is the first window of its task or key.
        final: False for an early result, which other evaluations of the same window follow.
        start, end: its times, in UTC; it covers (start, end], sessions [start, end). No start (None) if its length is a
            count.
    """

    def __init__(
        self, shared: UnitWindows, window: Window, key: str | None, evictor: Callable[[Any], Any] | None = None
    ) -> None:
        self._shared = shared
        self._window = window
        self._evictor = evictor
        self._kept: list[Tuple] | None = None
        values = () if key is None else tuple(value_of(key))
        self.key: Any = None if key is None else values[0] if len(values) == 1 else values
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

    def get(self) -> list[Tuple]:
        """Return the tuples of the window, ordered by time and arrival."""
        if self._kept is None:
            self._kept = self._evicted(self._content())
        return self._kept

    def get_new(self) -> list[Tuple]:
        """Return the tuples that were not in the previous window."""
        low, high = self._window.new
        return self._shared.content(low, high).tuples(low, high)

    def get_expired(self) -> list[Tuple]:
        """Return the tuples that have expired since the previous window, also those that were in no window."""
        low, high = self._window.old_low, self._window.low
        return self._shared.expired(low, high).tuples(low, high) if low < high else []

    def __iter__(self) -> Iterator[Tuple]:
        return iter(self.get())

    @property
    def table(self) -> pa.Table:
        """The tuples of the window as an Arrow table."""
        low, high = self._window.low, self._window.high
        whole = self._shared.content(low, high).table(low, high)
        if self._evictor is None:
            return whole
        kept = {id(one) for one in self.get()}
        return whole.filter(pa.array([id(one) in kept for one in self._content()]))

    @property
    def new_table(self) -> pa.Table:
        """The tuples of `get_new` as an Arrow table."""
        low, high = self._window.new
        return self._shared.content(low, high).table(low, high)

    @property
    def expired_table(self) -> pa.Table:
        """The tuples of `get_expired` as an Arrow table."""
        low, high = self._window.old_low, self._window.low
        return self._shared.expired(low, high).table(low, high)

    def __repr__(self) -> str:
        start = "" if self.start is None else f"{self.start.isoformat()} to "
        key = "" if self.key is None else f" of {self.key!r}"
        return f"TupleWindow({start}{self.end.isoformat()}{key})"

    def _content(self) -> list[Tuple]:
        low, high = self._window.low, self._window.high
        return self._shared.content(low, high).tuples(low, high)

    def _evicted(self, content: list[Tuple]) -> list[Tuple]:
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
