"""Events that the runtime reports to the state machine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Opened:
    """The ledger has been loaded and P0 (lead) is complete. Must be the first event; discards any earlier state.

    Attributes:
        currtx: the next txid to commit.
        stored: consecutive txids from `currtx` on whose metadata is stored; they are replayed without calling
            the spout. Empty for opaque spouts, whose undecided metadata the runtime has dropped.
    """

    currtx: int
    stored: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Wake:
    """The source may have new data (Storm's ``nextTuple``): poll it again."""


@dataclass(frozen=True, slots=True)
class Planned:
    """Answer to `Plan`: the metadata of `txid` is durable, and `attempt_id` is a new attempt."""

    txid: int
    attempt_id: int


@dataclass(frozen=True, slots=True)
class NotReady:
    """Answer to `Plan`: the source has no batch, or raised `FailedException`; it is polled again after a `Wake`."""

    txid: int


@dataclass(frozen=True, slots=True)
class Processed:
    """The processing phase of this attempt has finished."""

    txid: int
    attempt_id: int


@dataclass(frozen=True, slots=True)
class Committed:
    """The transactions up to `txid` have been published and completed (P8, complete).

    `txid` belongs to the group that is committing. If it is not the last of the group, the rest return to
    `PROCESSED`; send `Failed` for the txid that ended the group, or `Wake`, next.
    """

    txid: int
    attempt_id: int


@dataclass(frozen=True, slots=True)
class Failed:
    """This attempt failed, in the processing or the commit phase.

    Attributes:
        resume: if False, neither `txid` nor a later one is replayed until ``Resume(txid)``.
    """

    txid: int
    attempt_id: int
    resume: bool = True


@dataclass(frozen=True, slots=True)
class Resume:
    """The back-off of the failed `txid` has elapsed."""

    txid: int


@dataclass(frozen=True, slots=True)
class Deactivated:
    """The topology was deactivated: no new transactions may be started; those already started finish."""


@dataclass(frozen=True, slots=True)
class Activated:
    """The topology was activated again: new transactions may be started. Ignored after `Stopping`."""


@dataclass(frozen=True, slots=True)
class Stopping:
    """The run is stopping: finish the group that is committing, then stop.

    Attributes:
        drain: first commit all transactions already started, including replays, but start no new ones.
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
