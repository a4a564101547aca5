"""Run of a network by replicas: its fleet, conditions, commands and log, shared by spout, carrier and companion."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from txstorm.runtime.companion import Companion


@dataclass(frozen=True)
class NetworkOptions:
    """Options of a run by replicas.

    Attributes:
        ack_timeout: seconds without an answer after which a delivery is overdue, besides the operator's Interval.
        ping: seconds without an answer to a ping after which a replica is silent.
        buffer: deliveries that a replica holds at most.
        max_batch_rows: lines, and held tuples, of a transaction at most.
        allow: modules that CUSTOM operators may name.
        local: whether all replicas run on this machine, whatever their addresses are.
        key: file with the key of the process creation services.
        log: file of the log; None: ``dadstorm.log`` in the data directory.
        step: whether each command of the script waits for `NetworkRun.step`.
        stay: whether the run goes on when the script is over and nothing moves.
    """

    ack_timeout: float = 10.0
    ping: float = 12.0
    buffer: int = 10
    max_batch_rows: int = 10_000
    allow: tuple[str, ...] = ()
    local: bool = False
    key: Path | None = None
    log: Path | None = None
    step: bool = False
    stay: bool = False


class NetworkRun:
    """What spout, carrier and companion of one run share; unpickled, it is the same object in the process of the run."""


class NetworkCompanion(Companion):
    """Runs the script and commands of other terminals, and follows the fleet."""

    name = "dadstorm"

    def status(self) -> Mapping[str, Any]:
        """Return ``{"replicas": […], "script": [position, length]}``."""
        raise NotImplementedError
