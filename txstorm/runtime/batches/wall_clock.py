"""The clock of a run: the wall clock, believed only as far as the boot-time clock and the last stamp bear it out.

A clock that jumps forward would expire keys and states, and processing time would stand still once it is set right. So
a jump is not believed at once: see `StampClock`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from txstorm.display import duration_text, time_of
from txstorm.errors import InputError
from txstorm.lanes import Lanes
from txstorm.topology.settings import Settings

log = logging.getLogger(__name__)
SECOND = 1_000_000
HOUR = 3600 * SECOND
"""Most that a clock may jump, or be behind the last stamp, in microseconds, without being doubted."""


@dataclass(frozen=True)
class _Doubt:
    """A wall clock that is not believed yet.

    Attributes:
        ahead: by how much it is ahead of the boot-time clock, in microseconds.
        since: when that was noticed, by the boot-time clock, in microseconds.
        text: what is wrong with it.
    """

    ahead: int
    since: int
    text: str


class StampClock:
    """Clock from which stamps are taken, and the judge of the machine's wall clock. Driver thread only, but for `now`.

    While a jump forward is doubted, `now` goes on from the time before it, and `holds` is True if the topology depends
    on the time between transactions: it then plans nothing. The doubt ends when the clock returns, when it is accepted,
    or after ``clock_patience``: a clock that stays is believed. At a start the last stamp takes the place of the
    boot-time clock; a stop longer than ``max_stop`` is doubted, and after ``clock_patience`` refused.

    Args:
        lanes: give the clocks.
        settings: ``clock_patience`` and ``max_stop``.
        topology: its id, for messages.
        by_clock: the components that depend on the time between transactions; empty: a jump is only told.
        accepted: whether the clock is believed at the start.

    Attributes:
        settled: whether the time is certain enough to remove history by it.
    """

    def __init__(
        self, lanes: Lanes, settings: Settings, topology: str, by_clock: Sequence[str], *, accepted: bool = False
    ) -> None:
        self._lanes, self._topology, self._by_clock, self._accepted = lanes, topology, tuple(by_clock), accepted
        self._patience = int(settings.clock_patience * SECOND)
        self._max_stop = None if settings.max_stop is None else int(settings.max_stop * SECOND)
        self._ahead = self._read()[1]
        self._limit, self._starting = HOUR, False
        self._doubt: _Doubt | None = None
        self._behind = False
        self._last: int | None = None
        self.settled = True

    def open(self, last: int | None, seen: Callable[[], int | None] = lambda: None) -> None:
        """Compare the clock with the last time known of earlier runs; call once, first.

        Args:
            last: the last stamp, in UTC microseconds; None: there is none.
            seen: called if that is long ago; returns what `seen` was of the last run, which may have been idle.
        """
        boot, self._ahead = self._read()
        short = HOUR if self._max_stop is None else min(HOUR, self._max_stop)
        if last is not None and boot + self._ahead - last > short:
            last = max(last, seen() or last)
        self._last = last
        stop = 0 if last is None else boot + self._ahead - last
        if last is None or stop <= short:
            return
        text = f"{_span(stop)} have passed, by this machine's clock, since {time_of(last)}, the last time known"
        if self._accepted or self._max_stop is None or stop <= self._max_stop:
            log.log(logging.WARNING if self._by_clock else logging.INFO, "topology %s: %s", self._topology, text)
            return
        self.settled = False
        text = f"{text}: more than max_stop, {_span(self._max_stop)}"
        if not self._by_clock:
            log.warning("topology %s: %s; this run removes no history", self._topology, text)
            return
        self._doubt, self._limit, self._starting = _Doubt(self._ahead, boot, text), self._max_stop, True
        self._ahead = last - boot
        log.warning("topology %s: %s; %s", self._topology, text, self._waits("refused"))

    def now(self) -> int:
        """Return the time for stamps in UTC microseconds; during a doubt, the time without the jump. Thread-safe."""
        boot, ahead = self._read()
        return boot + (ahead if ahead <= self._ahead + self._limit else self._ahead)

    def holds(self) -> bool:
        """Look at the clock; return whether nothing may be planned by it now.

        Raises:
            InputError: at a start, the clock was doubted for ``clock_patience``.
        """
        boot, ahead = self._read()
        if ahead <= self._ahead + self._limit:
            self._returned(ahead)
        elif self._doubt is None or abs(ahead - self._doubt.ahead) > HOUR:
            self._doubted(boot, ahead)
        elif boot - self._doubt.since >= self._patience:
            self._outlasted(self._doubt)
        return self._doubt is not None and bool(self._by_clock)

    @property
    def problem(self) -> str | None:
        """The reason to doubt the clock, for the status; None if it is believed."""
        doubt = self._doubt
        return None if doubt is None else doubt.text

    @property
    def seen(self) -> int | None:
        """The last time known, for the next start: the present, unless it is in doubt."""
        return self.now() if self._doubt is None and self.settled else self._last

    def accept(self) -> None:
        """Believe the clock as it is now."""
        if self._doubt is not None or not self.settled:
            log.warning("topology %s: the clock is believed: it is %s", self._topology, time_of(self._lanes.now()))
        self._ahead, self._limit, self._starting = self._read()[1], HOUR, False
        self._doubt, self.settled, self._behind = None, True, False

    def _read(self) -> tuple[int, int]:
        """Return the boot-time clock, and how far the wall clock is ahead of it."""
        boot = int(self._lanes.boot() * SECOND)
        return boot, self._lanes.now() - boot

    def _returned(self, ahead: int) -> None:
        """Go on with a clock that is right, or right again; one that was set back stands still until it catches up."""
        if self._doubt is not None:
            log.warning("topology %s: the clock is right again: %s", self._topology, time_of(self._lanes.now()))
            self._doubt, self.settled = None, True
        if self._starting:
            self._ahead, self._limit, self._starting = ahead, HOUR, False
        behind = self._ahead - ahead > HOUR
        if behind and not self._behind:
            log.warning(
                "topology %s: the clock was set back by %s; stamps stand still until it has caught up. If it was wrong "
                "before, stop the topology and rewind it to a transaction before that: txstorm rewind",
                self._topology,
                _span(self._ahead - ahead),
            )
        self._behind = behind
        self._ahead = max(self._ahead, ahead)

    def _doubted(self, boot: int, ahead: int) -> None:
        jump = _span(ahead - self._ahead)
        text = f"the clock jumped forward by {jump}, to {time_of(boot + ahead)}"
        if self._starting:
            text = f"{jump} have passed, by this machine's clock, since the last time known"
        self._doubt = _Doubt(ahead, boot, text)
        log.warning(
            "topology %s: %s; %s", self._topology, text, self._waits("refused" if self._starting else "believed")
        )

    def _outlasted(self, doubt: _Doubt) -> None:
        if not self._starting or not self._by_clock:
            self.accept()
            return
        raise InputError(
            f"topology {self._topology}: {doubt.text}; {', '.join(self._by_clock)} would expire or fire by it. Set the "
            "clock right or, if it is right, start with --accept-clock (in Python: accept_clock=True)"
        )

    def _waits(self, then: str) -> str:
        wait = f"for {_span(self._patience)}"
        if not self._by_clock:
            return f"stamps go on without it {wait}; then it is {then}"
        return (
            f"{', '.join(self._by_clock)} would expire or fire by it, so nothing is planned until the clock is set "
            f"right, or accepted with txstorm accept-clock; {wait}, then it is {then}"
        )


def check_not_behind(now: int, stamps: Iterable[tuple[int, int]], last: int, data_dir: Path, *, accepted: bool) -> None:
    """Raise `InputError` if the clock is more than an hour before the last stamp.

    Args:
        now: the clock, in UTC microseconds.
        stamps: (txid, stamp) of the last transactions: the last committed one, and those planned after it.
        last: the last committed txid.
        data_dir: the data directory, for the message.
        accepted: whether the clock is believed all the same; stamps then stand still until it has caught up.
    """
    txid, stamp = max(stamps, key=lambda one: one[1], default=(0, now))
    if stamp - now <= HOUR:
        return
    behind = f"{_span(stamp - now)} before txid {txid}, {time_of(stamp)}"
    text = f"{data_dir}: this machine's clock, {time_of(now)}, is {behind}"
    if accepted:
        log.warning("%s; it was accepted, and stamps stand still until it has caught up", text)
        return
    back = (
        f"take these transactions back: txstorm history {data_dir} shows when each was, and txstorm rewind {data_dir} "
        "--to-txid N goes back to the last one with a right time"
    )
    remedy = back if last > 0 else "choose another data directory"
    raise InputError(
        f"{text}; set the clock right or, if it was wrong then, {remedy}. To go on all the same, with stamps that "
        "stand still until then: --accept-clock (in Python: accept_clock=True)"
    )


def _span(micros: int) -> str:
    return duration_text(timedelta(seconds=round(micros / SECOND)))
