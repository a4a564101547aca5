"""What the runtime tells the machine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Opened:
    """The ledger is loaded (P0 done); whatever the machine knew before is void. Must be the first event.

    Attributes:
        currtx: the next txid to commit.
        stored: txids from `currtx` on, without gaps, whose metadata is stored: they are emitted again without
            asking the spout. Empty for opaque spouts, whose undecided metadata the runtime has dropped.
    """

    currtx: int
    stored: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Wake:
    """Something may have changed (Storm's ``nextTuple``): ask the source again."""


@dataclass(frozen=True, slots=True)
class Planned:
    """Answer to `Plan`: the metadata of `txid` is stored durably, and `attempt_id` is fresh."""

    txid: int
    attempt_id: int


@dataclass(frozen=True, slots=True)
class NotReady:
    """Answer to `Plan`: the source has nothing, or raised `FailedException`; it is asked again after a `Wake`."""

    txid: int


@dataclass(frozen=True, slots=True)
class Processed:
    """The processing phase of this attempt has finished."""

    txid: int
    attempt_id: int


@dataclass(frozen=True, slots=True)
class Committed:
    """The transactions up to `txid` are published and completed (P8).

    `txid` belongs to the group that is committing. When it is not the group's last one, the others wait for
    their turn again; send `Failed` for the one that ended the group, or `Wake`, next.
    """

    txid: int
    attempt_id: int


@dataclass(frozen=True, slots=True)
class Failed:
    """This attempt failed, in either phase.

    Attributes:
        resume: False holds the re-emission of `txid` and all later ones until ``Resume(txid)``.
    """

    txid: int
    attempt_id: int
    resume: bool = True


@dataclass(frozen=True, slots=True)
class Resume:
    """The back-off of `txid` is over."""

    txid: int


@dataclass(frozen=True, slots=True)
class Deactivated:
    """Start no new transaction; what was started finishes."""


@dataclass(frozen=True, slots=True)
class Activated:
    """The end of `Deactivated`; means nothing after `Stopping`."""


@dataclass(frozen=True, slots=True)
class Stopping:
    """Finish the group that is committing and nothing else.

    Attributes:
        drain: True commits everything that was started first, replays included, and starts nothing new.
    """

    drain: bool = False


Event = (
    Opened | Wake | Planned | NotReady | Processed | Committed | Failed | Resume | Deactivated | Activated | Stopping
)
EVENTS: tuple[type[Event], ...] = (
    Opened,
    Wake,
    Planned,
    NotReady,
    Processed,
    Committed,
    Failed,
    Resume,
    Deactivated,
    Activated,
    Stopping,
)
