"""State machine of the negotiator: decides when a snapshot is taken, and shows where the run stands.

It is pure, and keeps nothing beyond the run: the run tells it what it does anyway, and carries out what it commands.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from txstorm.clocks import Clock, low_water_mark

UNAVAILABLE = "Unavailable"
INITIALIZE = "Initialize"
SPOUTS_REWIND = "SpoutsRewind"
FLOWING = "Flowing"
SPOUTS_PAUSED = "SpoutsPaused"


@dataclass(frozen=True)
class Started:
    """Event: the run has begun."""


@dataclass(frozen=True)
class Registered:
    """Event: the processor `name` is there."""

    name: str


@dataclass(frozen=True)
class Loaded:
    """Event: a bolt is loaded; `clocks`, newest first, are those of its states that it could begin with."""

    bolt: str
    clocks: tuple[Clock, ...]


@dataclass(frozen=True)
class Rewound:
    """Event: a spout stands at `clock`; None: at the beginning."""

    spout: str
    clock: Clock | None


@dataclass(frozen=True)
class GraceOver:
    """Event: the grace period is over, and the clock has moved since the last snapshot."""


@dataclass(frozen=True)
class Paused:
    """Event: a spout has stopped at `offset`: partition → the last offset that it has read."""

    spout: str
    offset: Clock


@dataclass(frozen=True)
class Saved:
    """Event: the state of a bolt as of `clock` is saved."""

    bolt: str
    clock: Clock


@dataclass(frozen=True)
class Lost:
    """Event: the processor `name` is lost."""

    name: str


Event = Started | Registered | Loaded | Rewound | GraceOver | Paused | Saved | Lost


@dataclass(frozen=True)
class Rewind:
    """Command: place the spouts at `clock`; None: at the beginning."""

    clock: Clock | None


@dataclass(frozen=True)
class Pause:
    """Command: plan nothing until the spouts have told where they are."""


@dataclass(frozen=True)
class Snapshot:
    """Command: take a snapshot at `clock`, while the spouts go on."""

    clock: Clock


@dataclass(frozen=True)
class RemoveEntries:
    """Command: remove what is shown of all processors, which then register again."""


Command = Rewind | Pause | Snapshot | RemoveEntries


@dataclass(frozen=True)
class MasterState:
    """State of the negotiator.

    Attributes:
        name: `UNAVAILABLE`, `INITIALIZE`, `SPOUTS_REWIND`, `FLOWING` or `SPOUTS_PAUSED`.
        clock: the clock that the spouts are to stand at, or of the snapshot being taken; None otherwise.
        spouts, bolts, sinks: the processors that are expected.
        there: those that have registered.
        answers: the spouts or bolts that have done what this state waits for, with the clocks they have told.
    """

    name: str = UNAVAILABLE
    clock: Clock | None = None
    spouts: frozenset[str] = frozenset()
    bolts: frozenset[str] = frozenset()
    sinks: frozenset[str] = frozenset()
    there: frozenset[str] = frozenset()
    answers: Mapping[str, tuple[Clock, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, spouts: Collection[str], bolts: Collection[str], sinks: Collection[str] = ()) -> MasterState:
        """Return the state before the first event, given the names of the expected processors."""
        return cls(spouts=frozenset(spouts), bolts=frozenset(bolts), sinks=frozenset(sinks))

    @property
    def expected(self) -> frozenset[str]:
        """The names of all expected processors."""
        return self.spouts | self.bolts | self.sinks

    def to_json(self) -> dict[str, Any]:
        """Return name and clock as the registry and the status show them."""
        return {"state": self.name, "clock": None if self.clock is None else dict(self.clock)}

    def __str__(self) -> str:
        return self.name if self.clock is None else f"{self.name}({self.clock})"


def step(state: MasterState, event: Event) -> tuple[MasterState, Sequence[Command]]:
    """Return the state after `event`, and what is to be done; an event for which a state does not wait changes nothing.

    In `INITIALIZE` without a clock that all bolts have, it waits for other clocks; if none has any, the spouts begin at
    the beginning.
    """
    at = (state.name, state.clock is not None)
    match event:
        case Started() if state.name == UNAVAILABLE:
            return _enter(state, INITIALIZE), ()
        case Lost(name) if state.name != UNAVAILABLE and name in state.expected:
            return replace(_enter(state, INITIALIZE), there=frozenset()), (RemoveEntries(),)
        case Registered(name) if state.name == INITIALIZE and name in state.expected:
            return _loaded(replace(state, there=state.there | {name}))
        case Loaded(bolt, clocks) if state.name == INITIALIZE and bolt in state.bolts:
            return _loaded(_answered(state, bolt, tuple(clocks)))
        case Rewound(spout, clock) if state.name == SPOUTS_REWIND and spout in state.spouts and clock == state.clock:
            state = _answered(state, spout)
            return (_enter(state, FLOWING) if state.answers.keys() == state.spouts else state), ()
        case GraceOver() if at == (FLOWING, False):
            return _enter(state, SPOUTS_PAUSED), (Pause(),)
        case Paused(spout, offset) if state.name == SPOUTS_PAUSED and spout in state.spouts:
            state = _answered(state, spout, (offset,))
            if state.answers.keys() != state.spouts:
                return state, ()
            chosen = low_water_mark([clock for told in state.answers.values() for clock in told])
            return _enter(state, FLOWING, chosen), (Snapshot(chosen),)
        case Saved(bolt, clock) if at == (FLOWING, True) and bolt in state.bolts and clock == state.clock:
            state = _answered(state, bolt)
            return (_enter(state, FLOWING) if state.answers.keys() == state.bolts else state), ()
    return state, ()


def _enter(state: MasterState, name: str, clock: Clock | None = None) -> MasterState:
    return replace(state, name=name, clock=clock, answers={})


def _answered(state: MasterState, name: str, clocks: tuple[Clock, ...] = ()) -> MasterState:
    return replace(state, answers={**state.answers, name: clocks})


def _loaded(state: MasterState) -> tuple[MasterState, Sequence[Command]]:
    """Leave `INITIALIZE` if all processors are there, all bolts are loaded, and there is a clock that all have."""
    known = list(state.answers.values())
    common = [clock for clock in (known[0] if known else ()) if all(clock in clocks for clocks in known)]
    if state.there != state.expected or state.answers.keys() != state.bolts or (any(known) and not common):
        return state, ()
    newest = common[0] if common else None
    for clock in common:
        newest = clock if newest is None or clock >= newest else newest
    return _enter(state, SPOUTS_REWIND, newest), (Rewind(newest),)
