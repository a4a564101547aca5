"""Ctrl-C and SIGTERM: the first ends the run cleanly, the second skips the compaction, the third leaves at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from txstorm.cli.output import INTERRUPTED
from txstorm.runtime.handle import RunHandle

SIGNALS = (signal.SIGINT, signal.SIGTERM)
STOPPING = (
    "stopping: what is decided is published, then state tables are brought up to date (interrupt again to skip that)"
)
SKIPPING = "skipping the compaction (interrupt again to leave at once; the next start recovers)"


class Interrupts:
    """Catches the signals while a run is executed.

    The handler only counts, because it may come at any moment; `act` does what is due, on the main thread. As
    `stop` blocks, it is called on a thread of its own: so a second signal finds somebody who listens.

    Args:
        say: shows a message to the user.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._handle: RunHandle | None = None
        self._count = 0
        self._acted = 0
        self._before: dict[signal.Signals, Any] = {}

    @property
    def interrupted(self) -> bool:
        """Whether there was a signal."""
        return self._count > 0

    def __enter__(self) -> Interrupts:
        # Python lets only the main thread set handlers; elsewhere the signals are somebody else's.
        if threading.current_thread() is threading.main_thread():
            self._before = {one: signal.signal(one, self._received) for one in SIGNALS}
        return self

    def __exit__(self, *exc: object) -> None:
        for one, handler in self._before.items():
            signal.signal(one, handler)

    def attach(self, handle: RunHandle) -> None:
        """From now on signals stop `handle`; before that they end the program where it stands."""
        self._handle = handle

    def act(self) -> None:
        """Do what the signals since the last call ask for; called often."""
        while self._acted < min(self._count, 2) and self._handle is not None:
            self._acted += 1
            if self._acted == 1:
                self._say(STOPPING)
                threading.Thread(target=self._handle.stop, name="txstorm-stop", daemon=True).start()
            else:
                self._say(SKIPPING)
                self._handle.skip_compaction()

    def _received(self, number: int, frame: FrameType | None) -> None:
        self._count += 1
        if self._handle is None:
            raise KeyboardInterrupt
        if self._count > 2:
            os._exit(INTERRUPTED)
