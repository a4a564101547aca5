"""Network machine: carries the tuples of one transaction after the other through the operators, in topological order.

Pure: it routes, holds, releases and numbers tuples; `delivery` has the rules of each operator's turn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from txstorm.dadstorm.conditions import Conditions, Replica
from txstorm.dadstorm.configuration import Configuration
from txstorm.dadstorm.delivery import Answers, Effect, Fields, Item

Settle = Callable[[str, Sequence[Fields]], Sequence[Fields | None]]
"""State of UNIQ and COUNT: takes an operator and the tuples that reached it, in order; returns what it emits for each
of them, or None. Called once a turn, and not for other operators."""


class Lines(NamedTuple):
    """Tuples that an operator reads from one of its sources.

    Attributes:
        operator: the operator.
        replica: the replica whose part of the source they are; None: routed as tuples of other operators are.
        items: the tuples, with ids ``FILE:LINE``.
    """

    operator: str
    replica: int | None
    items: Sequence[Item]


class Held(NamedTuple):
    """A held tuple.

    Attributes:
        operator: the operator that is to process it.
        replica: the replica it was routed to; `UNROUTED` (-1): routed when it goes on.
        at: its age: smaller is older; unique in a run; ``txid << 24 | n`` of the transaction that held it first.
        item: the tuple.
        reason: why it is held.
    """

    operator: str
    replica: int
    at: int
    item: Item
    reason: str


class Emitted(NamedTuple):
    """A tuple that an operator emitted: its id, the replica in it, and its fields."""

    id: str
    replica: int
    fields: Fields


class Lost(NamedTuple):
    """A tuple that was given up (at most once): the operator and replica that should have processed it."""

    operator: str
    replica: int
    item: Item


@dataclass
class Counts:
    """Tuples of one replica in one transaction: received (repeats too), processed (answers that counted), emitted."""

    received: int = 0
    processed: int = 0
    emitted: int = 0


@dataclass
class Outcome:
    """Outcome of a transaction.

    Attributes:
        emitted: the tuples that each operator emitted, in order.
        held: held tuples to be added, each under its operator and replica; some have the age of a released one.
        released: held tuples to be removed, as they were given to `begin`.
        lost: tuples that were given up (at most once).
        repeated: ids of tuples of which a further answer counted, once for each such answer (at least once).
        resent: the number of deliveries that were sent again.
        counts: by replica.
    """

    emitted: dict[str, list[Emitted]] = field(default_factory=dict)
    held: list[Held] = field(default_factory=list)
    released: list[Held] = field(default_factory=list)
    lost: list[Lost] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)
    resent: int = 0
    counts: dict[Replica, Counts] = field(default_factory=dict)


class Network:
    """The network of one run; not thread-safe. One transaction is carried at a time.

    Each method that takes the time `now` (seconds, monotonic) returns effects, to be carried out in order. Events of
    replicas, and of deliveries that are over, may come at any time, also between transactions.

    Args:
        configuration: the network.
        present: conditions at the start of the run.
        ack_timeout: seconds without an answer, besides the Interval of the operator, after which a delivery is overdue.
        buffer: deliveries that a replica has at most.
        first: number of the first delivery.
    """

    def __init__(
        self,
        configuration: Configuration,
        present: Conditions,
        ack_timeout: float = 10.0,
        buffer: int = 10,
        first: int = 1,
    ) -> None:
        raise NotImplementedError

    def begin(
        self,
        txid: int,
        planned: Conditions,
        lines: Sequence[Lines],
        held: Sequence[Held],
        settle: Settle,
        now: float,
    ) -> list[Effect]:
        """Carry a transaction; one that is still carried is abandoned first, and its deliveries withdrawn.

        Args:
            txid: the transaction.
            planned: the conditions in its metadata: they alone decide on routes and ids.
            lines: tuples that first operators read, in the order of their sources.
            held: held tuples that may go on (see `conditions.going`), in any order.
            settle: state of UNIQ and COUNT.
            now: the time.
        """
        raise NotImplementedError

    def abandon(self) -> list[Effect]:
        """Give up the transaction that is carried, if there is one: its deliveries are withdrawn."""
        raise NotImplementedError

    def answered(self, operator: str, replica: int, number: int, answers: Answers, now: float) -> list[Effect]:
        """A replica has answered a piece of a delivery; answers of withdrawn and unknown deliveries are dropped."""
        raise NotImplementedError

    def dead(self, operator: str, replica: int, now: float) -> list[Effect]:
        """A replica is dead, or given up: its deliveries are broken, and answers that still come are dropped."""
        raise NotImplementedError

    def frozen(self, operator: str, replica: int, now: float) -> list[Effect]:
        """A replica is frozen: what it has not answered is handed back, and held."""
        raise NotImplementedError

    def thawed(self, operator: str, replica: int) -> None:
        """A replica is not frozen any more; from the next planned transaction on it gets tuples."""
        raise NotImplementedError

    def started(self, operator: str, replica: int, now: float) -> list[Effect]:
        """A replica that was dead lives again, made anew."""
        raise NotImplementedError

    def silent(self, operator: str, replica: int) -> None:
        """A replica does not answer pings: what is sent again goes to others, if there are any."""
        raise NotImplementedError

    def woke(self, operator: str, replica: int) -> None:
        """A silent replica answers again."""
        raise NotImplementedError

    def tick(self, now: float) -> list[Effect]:
        """Time has passed: give up, or send again, what is overdue."""
        raise NotImplementedError

    @property
    def due(self) -> float | None:
        """The time at which `tick` has something to do, unless events come before; None: never."""
        raise NotImplementedError

    @property
    def outcome(self) -> Outcome | None:
        """The outcome of the transaction that was begun last; None while it is carried, or was abandoned."""
        raise NotImplementedError

    def pending(self, operator: str, replica: int) -> int:
        """Return the number of tuples that a replica has received and not answered."""
        raise NotImplementedError
