"""Conditions of an operator network: which operators are started, and which replicas are dead, frozen or slowed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from txstorm.dadstorm.configuration import Command, Configuration, Operator

Replica = tuple[str, int]
UNROUTED = -1
"""Replica of a held tuple that none was chosen for: its operator is not started, or had no live replica."""
NOT_STARTED, NO_REPLICA, FROZEN, INTERVAL = "not started", "no live replica", "frozen", "interval"
"""Reasons for which a tuple is held."""
_TURN_MS = 500


@dataclass(frozen=True)
class Conditions:
    """Durable conditions of all replicas, pinned in the metadata of each transaction when it is planned.

    Attributes:
        started: operators that were started.
        intervals: milliseconds that each replica of an operator sleeps after a tuple, where that is not 0.
        dead: replicas that are dead: crashed, ended, or given up as silent.
        frozen: live replicas that receive and do not process.
        position: the number of commands of the script that were carried out or refused.
    """

    started: frozenset[str] = frozenset()
    intervals: Mapping[str, int] = field(default_factory=dict)
    dead: frozenset[Replica] = frozenset()
    frozen: frozenset[Replica] = frozenset()
    position: int = 0

    def apply(self, command: Command) -> tuple[Conditions, str | None]:
        """Carry out `command` of a checked configuration; return the conditions after it, and why it was refused.

        Refused commands, Status and Wait change nothing. The position in the script is moved by `step` alone.
        """
        name, op, number = command.name, command.operator or "", command.number or 0
        one = (op, number)
        if name == "Start":
            return replace(self, started=self.started | {op}, dead=frozenset(r for r in self.dead if r[0] != op)), None
        if name == "Interval":
            others = {other: ms for other, ms in self.intervals.items() if other != op}
            return replace(self, intervals=others | ({op: number} if number else {})), None
        if name in ("Crash", "Freeze", "Unfreeze") and one in self.dead:
            return self, f"replica {number} of {op} is dead; `Start {op}` makes it anew"
        if name == "Crash":
            return self.died(*one), None
        if name == "Freeze":
            frozen = one in self.frozen
            return replace(self, frozen=self.frozen | {one}), "it is frozen already" if frozen else None
        if name == "Unfreeze":
            return replace(self, frozen=self.frozen - {one}), None if one in self.frozen else "it is not frozen"
        return self, None

    def step(self) -> Conditions:
        """Move on to the next command of the script."""
        return replace(self, position=self.position + 1)

    def died(self, operator: str, replica: int) -> Conditions:
        """Return the conditions after the death of a replica, which is not frozen any more."""
        one = (operator, replica)
        return replace(self, dead=self.dead | {one}, frozen=self.frozen - {one})

    def live(self, operator: Operator) -> tuple[int, ...]:
        """Return the replicas of `operator` that are not dead, in ascending order; frozen and silent ones are live."""
        return tuple(r for r in range(operator.replicas) if (operator.id, r) not in self.dead)

    def room(self, operator: str) -> int | None:
        """Return how many tuples each replica of `operator` processes in one transaction; None: any number."""
        interval = self.intervals.get(operator, 0)
        return max(1, _TURN_MS // interval) if interval else None

    def holds(self, operator: Operator, replica: int = UNROUTED) -> str | None:
        """Return the reason for which tuples of a replica are held (Interval apart); None: they go on.

        Tuples of a dead replica, and those that none was chosen for, go on when any replica of the operator is live.
        """
        if operator.id not in self.started:
            return NOT_STARTED
        if (operator.id, replica) in self.frozen:
            return FROZEN
        return None if self.live(operator) else NO_REPLICA

    def to_json(self) -> dict[str, Any]:
        """Return the conditions as JSON, sorted."""
        return {
            "started": sorted(self.started),
            "intervals": dict(sorted(self.intervals.items())),
            "dead": [list(one) for one in sorted(self.dead)],
            "frozen": [list(one) for one in sorted(self.frozen)],
            "position": self.position,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Conditions:
        """Return the conditions that `to_json` made `value` of."""
        return cls(
            started=frozenset(value["started"]),
            intervals=dict(value["intervals"]),
            dead=frozenset((op, r) for op, r in value["dead"]),
            frozen=frozenset((op, r) for op, r in value["frozen"]),
            position=value["position"],
        )


def going(configuration: Configuration, conditions: Conditions, held: Mapping[Replica, int]) -> dict[Replica, int]:
    """Return how many of the `held` tuples, counted by operator and replica, go on in a transaction, where any do.

    The oldest ones of each replica are meant. Where several replicas share what another one left, an `Interval` may
    have room for fewer: the rest is held again.
    """
    result = {}
    for (op, replica), number in held.items():
        operator = configuration.operator(op)
        room = conditions.room(op)
        live = conditions.live(operator)
        if number and conditions.holds(operator, replica) is None:
            result[op, replica] = number if room is None else min(number, room if replica in live else room * len(live))
    return result
