"""Commands from the state machine to the runtime."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Plan:
    """Plan `txid`: make its metadata durable and answer `Planned`, or answer `NotReady`.

    Every `Plan` must be answered; at most one is unanswered at any time.

    Attributes:
        replay: True if `txid` was started before. Then do not call `is_ready`; use the stored metadata or, for an
            opaque spout, plan the txid again from the end of ``txid - 1``.
    """

    txid: int
    replay: bool


@dataclass(frozen=True, slots=True)
class Process:
    """Emit this attempt and run its processing phase; sent once per attempt, in txid order."""

    txid: int
    attempt_id: int


@dataclass(frozen=True, slots=True)
class Commit:
    """Run the commit phase of one group: consecutive txids from `currtx` on, all of them processed."""

    txids: tuple[int, ...]
    attempt_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Discard:
    """Abandon these attempts: cancel or ignore them, and drop their results and overlays. Keep their metadata."""

    txids: tuple[int, ...]
    attempt_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Forget:
    """Delete the metadata, no longer needed, of the txids below `before`."""

    before: int


Command = Plan | Process | Commit | Discard | Forget
COMMANDS: tuple[type[Command], ...] = (Plan, Process, Commit, Discard, Forget)
