"""Data delay: how far the consumption of a stream is behind the present, as collected and as asked for by a join."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from txstorm.errors import InputError

if TYPE_CHECKING:
    from txstorm.clients.http import JsonClient

log = logging.getLogger(__name__)

LOOK_BACK = 16
"""Records before the last consumed one that are looked at, since times may decrease."""

TIMEOUT = 1.5
"""Seconds to wait for an answer, below the default of the setting `pin_timeout`."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS: Mapping[str, Callable[[float], Any]] = {
    "s": lambda ms: math.floor(ms / 1000),
    "ms": math.floor,
    "us": lambda ms: math.floor(ms * 1000),
    "datetime": lambda ms: _EPOCH + timedelta(milliseconds=math.floor(ms)),
}


@dataclass(frozen=True)
class DelayReport:
    """Report of how far a consumer has got, at one moment.

    Attributes:
        now: the moment.
        consumed: partition → offset of the last consumed record; None if there is none.
        ends: partition → offset after the last record; None if unknown.
        times: partition → the time up to which it is consumed; without partitions of which that is unknown.
        caught_up: the partitions that are consumed to their end, in order.
        consumed_time: the time up to which everything is consumed; None if unknown.
        delay: `now` − `consumed_time`; None if unknown.
    """

    now: float
    consumed: Mapping[Any, int | None]
    ends: Mapping[Any, int | None]
    times: Mapping[Any, float]
    caught_up: list[Any]
    consumed_time: float | None
    delay: float | None

    @property
    def slowest(self) -> Any:
        """The partition that determines the consumed time; None if all are caught up, or there are none."""
        behind = [one for one in self.consumed if one not in self.caught_up]
        unknown = [one for one in behind if one not in self.times]
        return next(iter(unknown), None) if unknown else min(behind, key=lambda one: self.times[one], default=None)

    def to_json(self) -> dict[str, Any]:
        """Return the report as ``POST /delay/<name>`` takes it."""
        partitions = {
            str(one): {
                "consumed": offset,
                "end": self.ends.get(one),
                "time": self.times.get(one),
                "caught_up": one in self.caught_up,
            }
            for one, offset in self.consumed.items()
        }
        own = {"reported_at": self.now, "consumed_time": self.consumed_time, "delay": self.delay}
        return {**own, "partitions": partitions}


def collect(
    consumed: Mapping[Any, int | None],
    time_of: Callable[[Any, int], float | None],
    ends: Mapping[Any, int | None],
    now: float,
    *,
    previous: DelayReport | None = None,
    look_back: int = LOOK_BACK,
) -> DelayReport:
    """Return how far a consumer has got, and how long that is behind `now`.

    The time of a partition is that of the record at the last consumed offset or, where times decrease, the greatest of
    it, of the records shortly before it, and of its time in `previous`. A partition that was at its end then, and is no
    longer, is consumed up to that moment at least. The consumed time is the minimum over the partitions that are not at
    their end, or `now` if there are none. It is unknown while the time of one of these is.

    To be safe, take `now` first, then read `consumed`, then `ends`: what is written in between is not overlooked.

    Args:
        consumed: partition → offset of the last consumed record; None or −1: none yet. Consumed means committed.
        time_of: returns the time of the record of a partition at an offset, in the unit of `now`; it returns None, or
            raises a `LookupError`, if no record is there.
        ends: partition → the offset after its last record, None if unknown; one without consumed records is listed
            here alone.
        now: the present.
        previous: the report before this one.
        look_back: number of records before the last consumed one to look at.

    Raises:
        InputError: a time is not a number, or an offset not an int.
    """
    if not _is_number(now):
        raise InputError(f"collect: now: expected a number, got {now!r}")
    for what, some in {"consumed": consumed, "ends": ends}.items():
        for one, given in some.items():
            if given is not None and type(given) is not int:
                raise InputError(f"collect: {what}: partition {one!r}: expected an int offset or None, got {given!r}")
    offsets: dict[Hashable, int | None] = {one: consumed.get(one) for one in [*consumed, *ends]}
    caught_up = [one for one, offset in offsets.items() if _at_end(offset, ends.get(one))]
    behind = [one for one in offsets if one not in caught_up]
    times: dict[Any, float] = {}
    for one, offset in offsets.items():
        found = _times(one, offset, time_of, look_back)
        if previous is not None and one in previous.consumed and _reached(previous.consumed[one], offset):
            found += [previous.times[one]] if one in previous.times else []
            found += [previous.now] if one in previous.caught_up and one in behind else []
        if found:
            times[one] = max(found)
    consumed_time: float | None = now
    if behind:
        consumed_time = min(times[one] for one in behind) if all(one in times for one in behind) else None
    delay = None if consumed_time is None else now - consumed_time
    return DelayReport(now, offsets, dict(ends), times, caught_up, consumed_time, delay)


def _times(partition: Any, offset: int | None, time_of: Callable[[Any, int], Any], look_back: int) -> list[float]:
    """Return the known times of the record at `offset`, and of those shortly before it."""
    found = []
    for one in range(-1 if offset is None else offset, max(-1, (offset or 0) - look_back - 1), -1):
        try:
            time = time_of(partition, one)
        except LookupError:
            continue
        if time is None:
            continue
        if not _is_number(time):
            msg = f"time of partition {partition!r}, offset {one}: expected a number, got {time!r}; mend time_of"
            raise InputError(msg)
        found.append(time)
    return found


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _reached(before: int | None, offset: int | None) -> bool:
    """Return whether `offset` is not before the consumed offset of an earlier report, as after a rewind."""
    return before is None or (offset is not None and offset >= before)


def _at_end(offset: int | None, end: int | None) -> bool:
    return end is not None and (-1 if offset is None else offset) + 1 >= end


class DataDelay:
    """Client of ``txstorm data-delay serve``: the `report` of a `DataDelaySync`.

    Example::

        DataDelaySync(left, report=DataDelay("http://delays:8071", "orders"))

    The consumed time is never extrapolated: between two reports of the collector, left rows wait for the next one. A
    late report only delays them. It goes back if the consumer is rewound; `DataDelaySync` then keeps the later one.

    Args:
        url: where the API is served.
        name: name under which the collector reports.
        token: the API's token; None: it has none.
        unit: ``s``, ``ms`` or ``us``, as the left side's time; ``datetime`` if that is a datetime.
        timeout: seconds to wait for an answer; less than the setting `pin_timeout`.

    Raises:
        InputError: the URL, the unit or a time is wrong.
    """

    def __init__(
        self, url: str, name: str, *, token: str | None = None, unit: str = "ms", timeout: float = TIMEOUT
    ) -> None:
        from txstorm.clients.http import JsonClient

        if unit not in _UNITS:
            raise InputError(f"DataDelay: unit: expected {', '.join(_UNITS)}, got {unit!r}")
        checked_name(name)
        self._client: JsonClient = JsonClient(url, "data delay", token=token, timeout=timeout, retry_for=0)
        self._name, self._unit = name, unit
        self._warned: set[str] = set()

    def __call__(self) -> Any:
        """Return the consumed time, as the left side has times; None while it is unknown.

        Raises:
            OSError: the API cannot be reached, or its answer is garbage; the caller keeps the previous value.
            InputError: it rejects the token.
        """
        from txstorm.clients.http import NotServed

        try:
            answer, _ = self._client.call("GET", f"/delay/{quote(self._name)}", check=self._fault)
        except NotServed:
            self._warn("unknown", "nothing is reported under this name yet; start its collector")
            return None
        time = answer["consumed_time"]
        if answer["stale"]:
            self._warn("stale", f"its last report is {answer['age'] / 1000:.0f} s old; check the collector")
        else:
            self._warned.discard("stale")
        if time is None:
            return None
        return _UNITS[self._unit](time)

    def _fault(self, answer: Any) -> str | None:
        """Return what is wrong with an answer; None if nothing is."""
        if not isinstance(answer, dict) or not {"name", "consumed_time", "stale", "age"} <= answer.keys():
            return "expected an object with name, consumed_time, stale and age"
        time = answer["consumed_time"]
        if time is not None and not _is_time(time):
            return f"consumed_time is {time!r}, expected milliseconds since 1970, before the year 10000, or null"
        if not isinstance(answer["stale"], bool) or not _is_time(answer["age"]):
            return "expected stale to be a boolean, and age milliseconds"
        return None if answer["name"] == self._name else f"the report is of {answer['name']!r}, not of {self._name!r}"

    def _warn(self, kind: str, what: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            log.warning("data delay %r at %s: %s", self._name, self._client.url, what)


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 253_402_300_800_000


def checked_name(name: str) -> str:
    """Return `name`; raise `InputError` unless it can name a data delay."""
    if not isinstance(name, str) or not name.replace("-", "").replace("_", "").replace(".", "").isalnum():
        raise InputError(f"name of a data delay: expected letters, digits, '-', '_' and '.', got {name!r}")
    if len(name) > 100 or not name.isascii():
        raise InputError(f"name of a data delay: expected at most 100 ASCII characters, got {name[:110]!r}")
    return name
