"""The mark: where something outside the data directory stands, kept there and changed together with its content."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mark:
    """Where a map or an outlet is: kept in its own system, and changed in one atomic step with its content.

    Attributes:
        topology: who owns it.
        incarnation: of the owner's data directory.
        epoch: of the coordinator that leads; one with a lower epoch must not write.
        timeline: counts rewinds.
        txid: the last transaction that was written.
        content: a digest of what was written with it.
    """

    topology: str
    incarnation: str
    epoch: int
    timeline: int
    txid: int
    content: str = ""
