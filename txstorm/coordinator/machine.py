"""State machine of a topology's transactions: Storm's coordinator, without its defects and with commit groups.

The active txids are always consecutive and begin at `currtx`: txids are planned in order, and a failure discards
every later attempt. The window is therefore a tuple, and the next txid to plan is the one after it.
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
    """Status of a txid's current attempt, in Storm's terms; a txid without one is not started, or already committed."""

    PROCESSING = "processing"
    PROCESSED = "processed"
    COMMITTING = "committing"

    def to(self, new: AttemptStatus) -> AttemptStatus:
        """Return `new` if it may follow this status; raise `TxstormError` otherwise."""
        if (self, new) not in _LEGAL:
            allowed = ", ".join(after.value for before, after in _LEGAL if before is self)
            msg = f"an attempt in status {self.value} may become {allowed}, got {new.value}; this is a fault of txstorm"
            raise TxstormError(msg)
        return new


_LEGAL = (
    (AttemptStatus.PROCESSING, AttemptStatus.PROCESSED),
    (AttemptStatus.PROCESSED, AttemptStatus.COMMITTING),
    # The group was decided only up to an earlier txid: this txid waits for its turn again.
    (AttemptStatus.COMMITTING, AttemptStatus.PROCESSED),
)


PROCESSING, PROCESSED, COMMITTING = AttemptStatus
FIRST_TXID = 1


@dataclass(frozen=True, slots=True)
class Config:
    """Configuration of the state machine, constant during a run.

    Attributes:
        max_pending: width of the window ``[currtx, currtx + max_pending)``; Storm's ``topology.max.spout.pending``.
        max_group: the maximum number of txids committed with one intent.
        opaque: whether an undecided batch may change when it is planned again.

    Raises:
        SettingError: one of the limits is less than 1.
    """

    max_pending: int
    max_group: int = 1
    opaque: bool = False

    def __post_init__(self) -> None:
        for name, value in (("max_pending", self.max_pending), ("max_group", self.max_group)):
            if value < 1:
                raise SettingError(f"{name}: expected a whole number of at least 1, got {value!r}")


class Mode(Enum):
    """Mode of the coordinator: which transactions may still be started."""

    CLOSED = "closed"
    ACTIVE = "active"
    INACTIVE = "inactive"
    DRAINING = "draining"
    STOPPING = "stopping"


class Entry(NamedTuple):
    """The current attempt of one active txid, with its status."""

    attempt_id: int
    status: AttemptStatus


class State(NamedTuple):
    """The complete, immutable state of the machine; a named tuple because every step creates a modified copy.

    Attributes:
        config: the limits given to `initial`.
        mode: which transactions may still be started.
        currtx: the next txid to commit; everything below it is committed.
        entries: the active txids from `currtx` on, in order.
        committing: the size of the group that is committing, at the start of `entries`; 0 if there is none.
        started: every txid below this one has been started before, so planning it again is a replay.
        planning: the txid of the unanswered `Plan`; None if there is none.
        void: whether the answer to that `Plan` is to be discarded.
        not_ready: the txid for which the source had no batch when polled since the last `Wake`; None if there is none.
        held: the failed txids that await their `Resume`.
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
        """The last committed txid, which Storm sends with every batch; None before the first commit."""
        return self.currtx - 1 if self.currtx > FIRST_TXID else None

    @property
    def active(self) -> Mapping[int, tuple[int, AttemptStatus]]:
        """The active transactions, as txid → (attempt id, status), in txid order."""
        return {txid: (entry.attempt_id, entry.status) for txid, entry in enumerate(self.entries, self.currtx)}

    @property
    def committing_txids(self) -> tuple[int, ...]:
        """The txids of the group that is committing; empty if there is none."""
        return tuple(range(self.currtx, self.currtx + self.committing))

    @property
    def following(self) -> tuple[int, ...]:
        """The processed txids directly after the group that is committing, at most `max_group` of them."""
        first = self.currtx + self.committing
        return tuple(range(first, first + (_processed_from(self, self.committing) if self.committing else 0)))

    @property
    def holding(self) -> tuple[int, ...]:
        """The txids that await their `Resume`, in order; no txid from the first of them on is active."""
        return tuple(sorted(self.held))

    @property
    def idle(self) -> bool:
        """True if no transaction is active."""
        return not self.entries

    @property
    def drained(self) -> bool:
        """True if every transaction ever started is committed and no `Plan` is unanswered."""
        return not self.entries and self.planning is None and self.started <= self.currtx

    @property
    def stopped(self) -> bool:
        """True if everything that `Stopping` waits for has finished."""
        if self.mode is Mode.DRAINING:
            return self.drained
        return self.mode is Mode.STOPPING and not self.entries and self.planning is None


Result = tuple[State, tuple[Command, ...]]


def initial(config: Config) -> State:
    """Return the state of the machine before `Opened`."""
    return State(config)


def step(state: State, event: Event) -> Result:
    """Return the next state, and the commands to carry out in order.

    Every `Plan` must be answered by `Planned` or `NotReady`. Late answers for attempts that are no longer
    current change nothing: the attempt id is compared first.

    Raises:
        TxstormError: an event that no correct runtime sends: one before `Opened`, or `Committed` for a current
            attempt outside the group that is committing.
        LedgerCorrupt: `Opened` with stored txids that leave gaps.
    """
    if state.mode is Mode.CLOSED and not isinstance(event, Opened):
        raise TxstormError(f"the coordinator got {event} first, expected Opened; this is a fault of txstorm")
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
        raise LedgerCorrupt(
            f"metadata is stored for txids {list(event.stored)}, expected a run without gaps from currtx "
            f"{event.currtx}; the ledger is damaged: restore it from a copy"
        )
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
        raise TxstormError(
            f"{event} was reported, but the group that commits is {state.committing_txids or 'none'}; "
            "this is a fault of txstorm: nothing more is committed until it is started again"
        )
    undecided = state.entries[index + 1 : state.committing]
    back = tuple(Entry(entry.attempt_id, entry.status.to(PROCESSED)) for entry in undecided)
    entries = back + state.entries[state.committing :]
    after = state._replace(currtx=event.txid + 1, entries=entries, committing=0)
    if back and state.mode is Mode.STOPPING:
        after, commands = _cut(after, 0)
    elif back:
        # A failure ended the group early, and its event has not arrived yet: committing the rest now would run
        # finish_batch once more for the txid that is about to fail.
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
    """Discard the active txids at `index` and after it, and void an unanswered `Plan`, whose txid comes after them."""
    dead, first = state.entries[index:], state.currtx + index
    after = state._replace(
        entries=state.entries[:index], committing=min(state.committing, index), void=state.planning is not None
    )
    if not dead:
        return after, ()
    return after, (Discard(tuple(range(first, first + len(dead))), tuple(entry.attempt_id for entry in dead)),)


def _is_current(state: State, index: int, attempt_id: int) -> bool:
    return 0 <= index < len(state.entries) and state.entries[index].attempt_id == attempt_id


def _forget(committed: int) -> Forget:
    """Delete the metadata of txids below `committed`, whose own is kept because the next txid is planned from it."""
    return Forget(committed)


def _sync(state: State) -> Result:
    """Do what Storm's ``sync`` does: first start a commit that is due, then plan the next batch."""
    size = _due(state)
    if not size:
        return _then_plan(state)
    entries = state.entries
    group = tuple(Entry(entry.attempt_id, entry.status.to(COMMITTING)) for entry in entries[:size])
    after = state._replace(entries=group + entries[size:], committing=size)
    return _then_plan(after, Commit(after.committing_txids, tuple(entry.attempt_id for entry in group)))


def _due(state: State) -> int:
    """Return how many txids, from `currtx` on, can be committed now."""
    return 0 if state.committing else _processed_from(state, 0)


def _processed_from(state: State, index: int) -> int:
    """Return the size of the group that could commit from `index` on: the number of consecutive processed txids."""
    if state.mode is Mode.STOPPING:
        return 0
    size = 0
    for entry in islice(state.entries, index, index + state.config.max_group):
        if entry.status is not PROCESSED:
            break
        size += 1
    return size


def _then_plan(state: State, *commands: Command) -> Result:
    """Return `commands`, followed by the `Plan` of the next txid if it may be planned now."""
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
