"""Watcher of a run: provides its current state to the live displays of the command line and notebooks."""

from __future__ import annotations

from collections.abc import Callable

from txstorm.lanes import THREADS
from txstorm.monitor.live import Moment, Rate
from txstorm.runtime.handle import RunHandle


class Watcher:
    """Callable that returns the current state of a run as a `Moment`.

    Args:
        handle: the run.
        since: start of the run, by the clock `monotonic`; None: now.
        monotonic: a clock in seconds.
    """

    def __init__(
        self, handle: RunHandle, since: float | None = None, monotonic: Callable[[], float] = THREADS.monotonic
    ) -> None:
        self._handle = handle
        self._monotonic = monotonic
        self._since = monotonic() if since is None else since
        self._rate = Rate()

    def __call__(self) -> Moment:
        """Return the current state of the run."""
        handle, now, seconds = self._handle, self._handle.progress, self._monotonic() - self._since
        rate = self._rate.after(seconds, now.rows)
        return Moment(handle.name, handle.engine, handle.status["phase"], now, handle.recentProgress, seconds, rate)
