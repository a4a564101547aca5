"""Watcher of a run: provides its current state to the live displays of the command line and notebooks."""

from __future__ import annotations

from txstorm.monitor.live import Moment
from txstorm.runtime.handle import RunHandle


class Watcher:
    """Callable that returns the current state of the run of `handle` as a `Moment`."""

    def __init__(self, handle: RunHandle) -> None:
        self._handle = handle

    def __call__(self) -> Moment:
        """Return the current state of the run."""
        handle = self._handle
        return Moment(handle.name, handle.engine, handle.phase, handle.progress, handle.recentProgress)
