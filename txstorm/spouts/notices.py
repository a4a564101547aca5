"""What a spout has to say of its source: logged at once, and kept until somebody takes it for the progress."""

from __future__ import annotations

import logging


class Notices:
    """Of one spout; used on the driver thread only.

    Args:
        component: the spout's id, with which every notice begins.
        log: where they are warnings.
    """

    def __init__(self, component: str, log: logging.Logger) -> None:
        self._component = component
        self._log = log
        self._kept: list[str] = []

    def say(self, what: str) -> None:
        """Log it, and keep it."""
        notice = f"spout {self._component!r}: {what}"
        self._log.warning("%s", notice)
        self._kept.append(notice)

    def take(self) -> list[str]:
        """Those that are new since the last call."""
        kept, self._kept = self._kept, []
        return kept
