"""Ctrl-C and SIGTERM: the first stops the run cleanly, the second skips the compaction, the third exits at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from txstorm.cli.output import INTERRUPTED
from txstorm.lanes import start_thread
from txstorm.runtime.handle import RunHandle

SIGNALS = (signal.SIGINT, signal.SIGTERM)
STOPPING = (
    "stopping: decided transactions are published, then state tables are compacted (interrupt again to skip that)"
)
SKIPPING = "skipping the compaction (interrupt again to exit at once; the next start recovers)"


class Interrupts:
    """Handler of Ctrl-C and SIGTERM during a run.

    The handler only counts signals, because it may interrupt any code; `act` then handles them on the main thread.
    `stop` blocks, so it is called on a separate thread, and the main thread can handle a second signal.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._handle: RunHandle | None = None
        self._count = 0
        self._acted = 0
        self._before: dict[signal.Signals, Any] = {}

    @property
    def interrupted(self) -> bool:
        """Whether a signal has arrived."""
        return self._count > 0

    def __enter__(self) -> Interrupts:
        # Python lets only the main thread set handlers; called from another thread, leave the signals to the program.
        if threading.current_thread() is threading.main_thread():
            self._before = {one: signal.signal(one, self._received) for one in SIGNALS}
        return self

    def __exit__(self, *exc: object) -> None:
        for one, handler in self._before.items():
            signal.signal(one, handler)

    def attach(self, handle: RunHandle) -> None:
        """Make signals stop the run of `handle` from now on; before this call they raise `KeyboardInterrupt`."""
        self._handle = handle

    def act(self) -> None:
        """Handle the signals received since the last call; called frequently from the main thread."""
        while self._acted < min(self._count, 2) and self._handle is not None:
            self._acted += 1
            if self._acted == 1:
                self._say(STOPPING)
                start_thread(self._handle.stop, name="txstorm-stop")
            else:
                self._say(SKIPPING)
                self._handle.skip_compaction()

    def _received(self, number: int, frame: FrameType | None) -> None:
        self._count += 1
        if self._handle is None:
            raise KeyboardInterrupt
        if self._count > 2:
            os._exit(INTERRUPTED)
