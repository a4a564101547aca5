"""The state machine of a topology's transactions: Storm's coordinator, with its defects mended, and groups.

The active txids are always a run without gaps that begins at `currtx`: planning goes in order, and a failure
takes every later txid with it. So the window is a tuple, and the next txid to plan is the one after it.

Where an attempt stands, and where it may go from there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from typing import NamedTuple, assert_never

from txstorm.coordinator.commands import Command, Commit, Discard, Forget, Plan, Process
from txstorm.coordinator.events import (
    Activated,
    Committed,
    Deactivated,
    Event,
    Failed,
    NotReady,
    Opened,
    Planned,
    Processed,
    Resume,
    Stopping,
    Wake,
)
from txstorm.errors import LedgerCorrupt, SettingError, TxstormError


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


PROCESSING, PROCESSED, COMMITTING = AttemptStatus
FIRST_TXID = 1


@dataclass(frozen=True, slots=True)
class Config:
    """What the machine is told once.

    Attributes:
        max_pending: width of the window ``[currtx, currtx + max_pending)``; Storm's ``topology.max.spout.pending``.
        max_group: how many txids may be committed under one intent.
        opaque: whether a batch that is not decided may change when it is planned again.

    Raises:
        SettingError: a number below 1.
    """

    max_pending: int
    max_group: int = 1
    opaque: bool = False

    def __post_init__(self) -> None:
        for name, value in (("max_pending", self.max_pending), ("max_group", self.max_group)):
            if value < 1:
                msg = f"{name}: expected a whole number of at least 1, got {value!r}"
                raise SettingError(msg)


class Mode(Enum):
    """What may still be started."""

    CLOSED = "closed"
    ACTIVE = "active"
    INACTIVE = "inactive"
    DRAINING = "draining"
    STOPPING = "stopping"


class Entry(NamedTuple):
    """The current attempt of one active txid."""

    attempt_id: int
    status: AttemptStatus


class State(NamedTuple):
    """Everything the machine knows; a value. A named tuple because a changed copy of it is made at every step.

    Attributes:
        config: as given to `initial`.
        mode: what may still be started.
        currtx: the next txid to commit; everything below it is committed.
        entries: the active txids from `currtx` on, in order.
        committing: how many of `entries`, from the first, are the group that is committing; 0 when none is.
        started: txids below it have been started before: planning them again is a replay.
        planning: the txid of the unanswered `Plan`, if there is one.
        void: the answer to that `Plan` is no longer wanted.
        not_ready: the txid the source had nothing for since the last `Wake`, if there is one.
        held: failed txids that wait for their `Resume`.
    """

    config: Config
    mode: Mode = Mode.CLOSED
    currtx: int = FIRST_TXID
    entries: tuple[Entry, ...] = ()
    committing: int = 0
    started: int = FIRST_TXID
    planning: int | None = None
    void: bool = False
    not_ready: int | None = None
    held: frozenset[int] = frozenset()

    @property
    def committed(self) -> int | None:
        """The last committed txid; None before the first (what Storm sends along with every batch)."""
        return self.currtx - 1 if self.currtx > FIRST_TXID else None

    @property
    def active(self) -> Mapping[int, tuple[int, AttemptStatus]]:
        """Txid → (attempt id, status) of all active transactions, in txid order."""
        return {txid: (entry.attempt_id, entry.status) for txid, entry in enumerate(self.entries, self.currtx)}

    @property
    def committing_txids(self) -> tuple[int, ...]:
        """The group that is committing; empty when none is."""
        return tuple(range(self.currtx, self.currtx + self.committing))

    @property
    def following(self) -> tuple[int, ...]:
        """The processed txids right behind the group that is committing, as many as a group may have."""
        first = self.currtx + self.committing
        return tuple(range(first, first + (_processed_from(self, self.committing) if self.committing else 0)))

    @property
    def holding(self) -> tuple[int, ...]:
        """The txids that wait for their `Resume`, in order; nothing from the first of them on is active."""
        return tuple(sorted(self.held))

    @property
    def idle(self) -> bool:
        """Whether nothing is active."""
        return not self.entries

    @property
    def drained(self) -> bool:
        """Whether everything that was ever started is committed and no `Plan` is unanswered."""
        return not self.entries and self.planning is None and self.started <= self.currtx

    @property
    def stopped(self) -> bool:
        """Whether, after `Stopping`, nothing is left to wait for."""
        if self.mode is Mode.DRAINING:
            return self.drained
        return self.mode is Mode.STOPPING and not self.entries and self.planning is None


Result = tuple[State, tuple[Command, ...]]


def initial(config: Config) -> State:
    """The state before `Opened`."""
    return State(config)


def step(state: State, event: Event) -> Result:
    """What follows from `event`: the next state, and what is to be done, in that order.

    Every `Plan` must be answered by `Planned` or `NotReady`. Late answers for attempts that are no longer the
    current one of their txid change nothing (the attempt is compared before anything is removed).

    Raises:
        TxstormError: an event no correct runtime sends: one before `Opened`, or `Committed` for a current
            attempt that was not told to commit.
        LedgerCorrupt: `Opened` with stored txids that leave gaps.
    """
    if state.mode is Mode.CLOSED and not isinstance(event, Opened):
        msg = f"the coordinator got {event} first, expected Opened; this is a fault of txstorm"
        raise TxstormError(msg)
    match event:
        case Processed():
            return _processed(state, event)
        case Planned():
            return _planned(state, event)
        case Committed():
            return _committed(state, event)
        case NotReady():
            return _source_empty(state, event)
        case Failed():
            return _failed(state, event)
        case Wake():
            return _sync(state if state.not_ready is None else state._replace(not_ready=None))
        case Opened():
            return _opened(state, event), ()
        case Resume():
            return _sync(state._replace(held=state.held - {event.txid}))
        case Deactivated():
            return (state._replace(mode=Mode.INACTIVE) if state.mode is Mode.ACTIVE else state), ()
        case Activated():
            return _sync(state._replace(mode=Mode.ACTIVE)) if state.mode is Mode.INACTIVE else (state, ())
        case Stopping():
            return _stopping(state, drain=event.drain)
        case _:
            assert_never(event)


def _opened(state: State, event: Opened) -> State:
    end = event.currtx + len(event.stored)
    if event.stored != tuple(range(event.currtx, end)):
        msg = (
            f"metadata is stored for txids {list(event.stored)}, expected a run without gaps from currtx "
            f"{event.currtx}; the ledger is damaged: restore it from a copy"
        )
        raise LedgerCorrupt(msg)
    if event.stored and state.config.opaque:
        msg = f"opaque: metadata of the undecided txids {list(event.stored)} must be dropped before Opened"
        raise TxstormError(msg)
    return State(state.config, mode=Mode.ACTIVE, currtx=event.currtx, started=end)


def _planned(state: State, event: Planned) -> Result:
    txid = event.txid
    if txid != state.planning:
        return state, (Discard((txid,), (event.attempt_id,)),)
    started = max(state.started, txid + 1)
    if state.void:
        answered = state._replace(planning=None, void=False, started=started)
        return _then_plan(answered, Discard((txid,), (event.attempt_id,)))
    entries = (*state.entries, Entry(event.attempt_id, PROCESSING))
    return _then_plan(state._replace(planning=None, started=started, entries=entries), Process(txid, event.attempt_id))


def _source_empty(state: State, event: NotReady) -> Result:
    if event.txid != state.planning:
        return state, ()
    if state.void:
        return _then_plan(state._replace(planning=None, void=False))
    return state._replace(planning=None, not_ready=event.txid), ()


def _processed(state: State, event: Processed) -> Result:
    index = event.txid - state.currtx
    if not _is_current(state, index, event.attempt_id) or state.entries[index].status is not PROCESSING:
        return state, ()
    done = Entry(event.attempt_id, PROCESSING.to(PROCESSED))
    return _sync(state._replace(entries=(*state.entries[:index], done, *state.entries[index + 1 :])))


def _committed(state: State, event: Committed) -> Result:
    index = event.txid - state.currtx
    if not _is_current(state, index, event.attempt_id):
        return state, ()
    if index >= state.committing:
        msg = (
            f"{event} was reported, but the group told to commit is {state.committing_txids or 'none'}; "
            "this is a fault of txstorm: nothing more is committed until it is started again"
        )
        raise TxstormError(msg)
    back = tuple(Entry(one.attempt_id, one.status.to(PROCESSED)) for one in state.entries[index + 1 : state.committing])
    entries = back + state.entries[state.committing :]
    after = state._replace(currtx=event.txid + 1, entries=entries, committing=0)
    if back and state.mode is Mode.STOPPING:
        after, commands = _cut(after, 0)
    elif back:
        # Something ended the group early. The event that says what is on its way: beginning the rest now would
        # run finish_batch of the txid that is about to fail once more.
        commands = ()
    else:
        after, commands = _sync(after)
    return after, (_forget(event.txid), *commands)


def _failed(state: State, event: Failed) -> Result:
    index = event.txid - state.currtx
    if not _is_current(state, index, event.attempt_id):
        return state, ()
    after, discard = _cut(state, index)
    if not event.resume:
        after = after._replace(held=after.held | {event.txid})
    after, commands = _sync(after)
    return after, discard + commands


def _stopping(state: State, *, drain: bool) -> Result:
    if state.mode is Mode.STOPPING:
        return state, ()
    if drain:
        return state._replace(mode=Mode.DRAINING), ()
    return _cut(state._replace(mode=Mode.STOPPING), state.committing)


def _cut(state: State, index: int) -> tuple[State, tuple[Command, ...]]:
    """Drop the active txids from `index` on, and the plan on its way, which would follow them."""
    dead, first = state.entries[index:], state.currtx + index
    after = state._replace(
        entries=state.entries[:index], committing=min(state.committing, index), void=state.planning is not None
    )
    if not dead:
        return after, ()
    return after, (Discard(tuple(range(first, first + len(dead))), tuple(one.attempt_id for one in dead)),)


def _is_current(state: State, index: int, attempt_id: int) -> bool:
    return 0 <= index < len(state.entries) and state.entries[index].attempt_id == attempt_id


def _forget(committed: int) -> Forget:
    """The metadata of `committed` itself stays: it is what the next txid is planned from."""
    return Forget(committed)


def _sync(state: State) -> Result:
    """Storm's sync: first the commit that is due, then the next batch."""
    size = _due(state)
    if not size:
        return _then_plan(state)
    entries = state.entries
    group = tuple(Entry(one.attempt_id, one.status.to(COMMITTING)) for one in entries[:size])
    after = state._replace(entries=group + entries[size:], committing=size)
    return _then_plan(after, Commit(after.committing_txids, tuple(one.attempt_id for one in group)))


def _due(state: State) -> int:
    """How many txids can be committed now, from `currtx` on."""
    return 0 if state.committing else _processed_from(state, 0)


def _processed_from(state: State, index: int) -> int:
    """How many active txids from `index` on are processed and could be one group."""
    if state.mode is Mode.STOPPING:
        return 0
    size = 0
    for entry in islice(state.entries, index, index + state.config.max_group):
        if entry.status is not PROCESSED:
            break
        size += 1
    return size


def _then_plan(state: State, *commands: Command) -> Result:
    """`commands`, and the `Plan` of the next txid if one may be asked for."""
    txid = state.currtx + len(state.entries)
    replay = txid < state.started
    if not _may_plan(state, txid, replay=replay):
        return state, commands
    return state._replace(planning=txid), (*commands, Plan(txid, replay))


def _may_plan(state: State, txid: int, *, replay: bool) -> bool:
    if state.planning is not None or len(state.entries) >= state.config.max_pending or state.mode is Mode.STOPPING:
        return False
    if txid in state.held or (state.not_ready is not None and state.not_ready <= txid):
        return False
    return replay or state.mode is Mode.ACTIVE
