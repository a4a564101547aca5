"""Where an attempt stands, and where it may go from there."""

from __future__ import annotations

from enum import Enum

from txstorm.errors import TxstormError


class AttemptStatus(Enum):
    """Status of the current attempt of a txid, in Storm's words; a txid without one is not started or done."""

    PROCESSING = "processing"
    PROCESSED = "processed"
    COMMITTING = "committing"

    def to(self, new: AttemptStatus) -> AttemptStatus:
        """`new`, when an attempt in this status may go there; raises `TxstormError` otherwise."""
        if (self, new) not in _LEGAL:
            allowed = ", ".join(after.value for before, after in _LEGAL if before is self)
            msg = f"an attempt in status {self.value} may become {allowed}, got {new.value}; this is a fault of txstorm"
            raise TxstormError(msg)
        return new


_LEGAL = (
    (AttemptStatus.PROCESSING, AttemptStatus.PROCESSED),
    (AttemptStatus.PROCESSED, AttemptStatus.COMMITTING),
    # The group was decided only up to an earlier txid: this one waits for its turn again.
    (AttemptStatus.COMMITTING, AttemptStatus.PROCESSED),
)
