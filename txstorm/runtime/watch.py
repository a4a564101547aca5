"""Moments of a run, one after the other, as they are drawn by the command line and in notebooks."""

from __future__ import annotations

import time
from collections.abc import Callable

from txstorm.monitor.live import Moment, Rate
from txstorm.runtime.handle import RunHandle


class Watcher:
    """Called now and then, it gives the run as it is at that moment.

    Args:
        handle: the run.
        since: when it began, by `monotonic`; now when None.
        monotonic: seconds.
    """

    def __init__(
        self, handle: RunHandle, since: float | None = None, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._handle = handle
        self._monotonic = monotonic
        self._since = monotonic() if since is None else since
        self._rate = Rate()

    def __call__(self) -> Moment:
        """The run now."""
        handle, now, seconds = self._handle, self._handle.progress, self._monotonic() - self._since
        rate = self._rate.after(seconds, now.rows)
        return Moment(handle.name, handle.engine, handle.status["phase"], now, handle.recentProgress, seconds, rate)
