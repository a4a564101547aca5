"""What the machine tells the runtime to do."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Plan:
    """Make the metadata of `txid` durable and answer `Planned`, or answer `NotReady`.

    At most one is unanswered at any time, and it must be answered.

    Attributes:
        replay: `txid` was started before: do not ask `is_ready`; use the stored metadata, or, for an opaque
            spout, plan again from the end of ``txid - 1``.
    """

    txid: int
    replay: bool


@dataclass(frozen=True, slots=True)
class Process:
    """Emit this attempt and run its processing phase; once per attempt, in txid order."""

    txid: int
    attempt_id: int


@dataclass(frozen=True, slots=True)
class Commit:
    """Run the commit phase of one group: consecutive txids from `currtx`, all processed."""

    txids: tuple[int, ...]
    attempt_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Discard:
    """These attempts are dead: cancel or ignore them, drop their results and overlays. Metadata stays."""

    txids: tuple[int, ...]
    attempt_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Forget:
    """Metadata of txids below `before` is no longer needed."""

    before: int


Command = Plan | Process | Commit | Discard | Forget
COMMANDS: tuple[type[Command], ...] = (Plan, Process, Commit, Discard, Forget)
