"""Network machine: carries the tuples of one transaction after the other through the operators, in topological order.

Pure: it routes, holds, releases and numbers tuples; `delivery` has the rules of each operator's turn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain, compress, count, repeat
from typing import Any, NamedTuple

from txstorm.dadstorm.conditions import FROZEN, INTERVAL, UNROUTED, Conditions, Replica
from txstorm.dadstorm.configuration import AT_LEAST_ONCE, Configuration, Operator
from txstorm.dadstorm.delivery import Answers, Crew, Effect, Item, Items, Lost, Turn
from txstorm.dadstorm.routing import pick_many
from txstorm.dadstorm.values import Fields

AGE_BITS = 24
"""Bits of the age of a held tuple behind the txid."""

Settle = Callable[[str, Sequence[Fields]], Sequence[Fields | None]]
"""State of UNIQ and COUNT: takes an operator and the tuples that reached it, in order; returns what it emits for each
of them, or None. Called once a turn, and not for other operators."""


class Lines(NamedTuple):
    """Tuples that an operator reads from one of its sources.

    Attributes:
        operator: the operator.
        replica: the replica whose part of the source they are; None: routed as tuples of other operators are.
        items: the tuples, with ids ``FILE:LINE``.
        source: the position of the source among those of the operator; None: that of its first file or topic.
    """

    operator: str
    replica: int | None
    items: Items | Sequence[Item]
    source: int | None = None


class Held(NamedTuple):
    """A held tuple.

    Attributes:
        operator: the operator that is to process it.
        replica: the replica it was routed to; `UNROUTED` (-1): routed when it goes on.
        at: its age: smaller is older; unique in a run; ``txid << AGE_BITS | n`` of the transaction that held it first.
        item: the tuple.
        reason: why it is held.
    """

    operator: str
    replica: int
    at: int
    item: Item
    reason: str


@dataclass
class Emitted:
    """Tuples that an operator emitted, in order, as columns: their ids, the replicas in these, and their fields."""

    ids: list[str] = field(default_factory=list)
    replicas: list[int] = field(default_factory=list)
    fields: list[Fields] = field(default_factory=list)


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
        released: held tuples to be removed, as they were given to `begin`: of each operator and replica the oldest. One
            that stays, though a younger one went, is in `held` as well.
        lost: tuples that were given up (at most once).
        repeated: operator and id of tuples of which a further answer counted, once for each (at least once).
        resent: the number of deliveries that were sent again.
        misfits: number of tuples of each operator that lacked the field of its ``hashing``.
        counts: by replica.
    """

    emitted: dict[str, Emitted] = field(default_factory=dict)
    held: list[Held] = field(default_factory=list)
    released: list[Held] = field(default_factory=list)
    lost: list[Lost] = field(default_factory=list)
    repeated: list[tuple[str, str]] = field(default_factory=list)
    resent: int = 0
    misfits: Counter[str] = field(default_factory=Counter)
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
    """

    def __init__(
        self,
        configuration: Configuration,
        present: Conditions,
        ack_timeout: float = 10.0,
        buffer: int = 10,
    ) -> None:
        self._configuration = configuration
        self._crew = Crew.of(present)
        self._ack_timeout = ack_timeout
        self._buffer = buffer
        self._numbers = count(1).__next__
        self._transaction: _Transaction | None = None
        self._turn: Turn | None = None
        self.outcome: Outcome | None = None
        """The outcome of the transaction that was begun last; None while it is carried, or was abandoned."""

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
            lines: tuples that first operators read.
            held: held tuples that may go on (see `conditions.going`), in any order.
            settle: state of UNIQ and COUNT.
            now: the time.
        """
        effects = self.abandon()
        self._transaction = _Transaction(self._configuration, txid, planned, lines, held, settle)
        return effects + self._go_on(now)

    def abandon(self) -> list[Effect]:
        """Give up the transaction that is carried, if there is one: its deliveries are withdrawn."""
        turn, self._turn, self._transaction, self.outcome = self._turn, None, None, None
        return turn.abandon() if turn else []

    def answered(self, operator: str, number: int, answers: Answers, now: float) -> list[Effect]:
        """A replica has answered a piece of a delivery; answers of withdrawn and unknown deliveries are dropped."""
        turn = self._turn_of(operator)
        return turn.answered(number, answers, now) + self._go_on(now) if turn else []

    def dead(self, operator: str, replica: int, now: float) -> list[Effect]:
        """A replica is dead, or given up: its deliveries are broken, and answers that still come are dropped."""
        self._crew.dead.add((operator, replica))
        self._crew.frozen.discard((operator, replica))
        turn = self._turn_of(operator)
        return turn.dead(replica, now) + self._go_on(now) if turn else []

    def frozen(self, operator: str, replica: int, now: float) -> list[Effect]:
        """A replica is frozen: what it has not answered is handed back, and held."""
        self._crew.frozen.add((operator, replica))
        turn = self._turn_of(operator)
        return turn.frozen(replica, now) + self._go_on(now) if turn else []

    def thawed(self, operator: str, replica: int) -> None:
        """A replica is not frozen any more."""
        self._crew.frozen.discard((operator, replica))

    def started(self, operator: str, replica: int) -> None:
        """A replica that was dead lives again, made anew."""
        self._crew.dead.discard((operator, replica))

    def tick(self, now: float) -> list[Effect]:
        """Time has passed: give up, or send again, what is overdue."""
        return self._turn.tick(now) + self._go_on(now) if self._turn else []

    @property
    def due(self) -> float | None:
        """The time at which `tick` has something to do, unless events come before; None: never."""
        return self._turn.due if self._turn else None

    def pending(self, operator: str, replica: int) -> int:
        """Return the number of tuples that a replica has received and not answered."""
        turn = self._turn_of(operator)
        return turn.pending(replica) if turn else 0

    def _turn_of(self, operator: str) -> Turn | None:
        return self._turn if self._turn is not None and self._turn.operator.id == operator else None

    def _go_on(self, now: float) -> list[Effect]:
        """Begin turns until one has to wait for answers, or the transaction is complete."""
        effects: list[Effect] = []
        transaction = self._transaction
        while transaction is not None and (self._turn is None or self._turn.over):
            if self._turn is not None:
                transaction.end_turn(self._turn)
            operator = transaction.next_operator()
            if operator is None:
                self._transaction, self._turn, self.outcome = None, None, transaction.outcome
                break
            limit = self._ack_timeout + transaction.planned.intervals.get(operator.id, 0) / 1000
            semantics = self._configuration.semantics
            self._turn = Turn(operator, semantics, self._crew, limit, self._buffer, self._numbers)
            effects += self._turn.begin(transaction.route(operator), now)
        return effects


class _Transaction:
    """One transaction in a network: its tuples, from operator to operator, and what has become of them."""

    def __init__(
        self,
        configuration: Configuration,
        txid: int,
        planned: Conditions,
        lines: Sequence[Lines],
        held: Sequence[Held],
        settle: Settle,
    ) -> None:
        self.planned = planned
        self.outcome = Outcome()
        self._configuration = configuration
        self._txid = txid
        self._lines = lines
        self._held = sorted(held, key=lambda one: one.at)
        self._settle = settle
        self._operators = iter(configuration.order())
        self._ages = count(txid << AGE_BITS | 1)
        # Of the operator whose turn it is: its tuples, the replica of each, those of them that were held before
        # (they come first), and those that are held now, with replica and reason.
        self._ids: list[str] = []
        self._fields: list[Fields] = []
        self._routes: list[int] = []
        self._released: list[Held] = []
        self._holding: dict[int, tuple[int, str]] = {}

    def next_operator(self) -> Operator | None:
        """Return the operator whose turn is next; None: all have had theirs."""
        following = next(self._operators, None)
        return None if following is None else self._configuration.operator(following)

    def route(self, operator: Operator) -> dict[int, Items]:
        """Return the tuples that go to each replica of `operator` now; take note of those that are held."""
        self._arrive(operator)
        everything = self.planned.holds(operator)
        if everything:
            self._holding = {at: (replica, everything) for at, replica in enumerate(self._routes)}
            return {}
        ids, fields, routes, live = self._ids, self._fields, self._routes, set(self.planned.live(operator))
        if away := set(routes) - live:
            mask = list(map(away.__contains__, routes))
            routed = pick_many(operator, list(compress(ids, mask)), list(compress(fields, mask)), sorted(live))
            self.outcome.misfits[operator.id] += routed.misfits
            if all(mask):
                self._routes = routes = routed.replicas
            else:
                picked = iter(routed.replicas)
                self._routes = routes = [next(picked) if it else one for it, one in zip(mask, routes, strict=True)]
        receivers = sorted(set(routes))
        frozen = {replica for replica in receivers if self.planned.holds(operator, replica)}
        rooms = dict.fromkeys(receivers, self.planned.room(operator.id))
        for at, replica in enumerate(routes) if frozen or None not in rooms.values() else ():
            room = rooms[replica]
            if replica in frozen:
                self._holding[at] = replica, FROZEN
            elif room == 0:
                self._holding[at] = replica, INTERVAL
            elif room is not None:
                rooms[replica] = room - 1
        shares: dict[int, Items] = {}
        for receiver in receivers:
            mask = list(map(receiver.__eq__, routes))
            for at in self._holding:
                mask[at] = False
            shares[receiver] = Items(list(compress(ids, mask)), list(compress(fields, mask)))
        return {replica: share for replica, share in shares.items() if share}

    def _arrive(self, operator: Operator) -> None:
        """Collect the tuples of an operator: held ones by age, then by input as listed, then as emitted."""
        self._released = [one for one in self._held if one.operator == operator.id]
        self._ids = [one.item.id for one in self._released]
        self._fields = [one.item.fields for one in self._released]
        self._routes = [one.replica for one in self._released]
        self._holding = {}
        lines = [one for one in self._lines if one.operator == operator.id]
        live, sources = self.planned.live(operator), operator.sources
        first = next((at for at, source in enumerate(sources) if source.kind != "operator"), len(sources))
        for at, source in enumerate([*sources, None]):
            if source is not None and source.kind == "operator" and sources.index(source) == at:
                emitted = self.outcome.emitted[source.text]
                self._ids += emitted.ids
                self._fields += emitted.fields
                self._routes += [UNROUTED] * len(emitted.ids)
            for one in lines:
                if at == (first if one.source is None else one.source):
                    part = UNROUTED if one.replica is None else one.replica
                    part = live[0] if live and part != UNROUTED and part not in live else part
                    items = Items.of(one.items)
                    self._ids += items.ids
                    self._fields += items.fields
                    self._routes += [part] * len(items)

    def end_turn(self, turn: Turn) -> None:
        """Take over the results of a turn: number what is emitted, and hold what came back."""
        operator, outcome = turn.operator, self.outcome
        outcome.lost += turn.lost
        outcome.resent += turn.resent
        outcome.repeated += [(operator.id, id) for id, more in turn.further.items() for _ in more]
        for replica in turn.received.keys() | turn.processed.keys():
            counts = outcome.counts.setdefault((operator.id, replica), Counts())
            counts.received, counts.processed = turn.received[replica], turn.processed[replica]
        self._hold(turn)
        made: list[Sequence[Any]]
        if turn.further or len(turn.results) < len(self._ids):
            made = [[*turn.results.pop(id, ()), *chain.from_iterable(turn.further.pop(id, ()))] for id in self._ids]
        else:
            made = list(map(turn.results.__getitem__, self._ids))
        rows: list[Fields] = list(map(tuple, chain.from_iterable(made)))
        replicas = list(chain.from_iterable(map(repeat, self._routes, map(len, made))))
        if operator.type in ("UNIQ", "COUNT") and rows:
            settled = self._settle(operator.id, rows)
            replicas = [replica for one, replica in zip(settled, replicas, strict=True) if one is not None]
            rows = [one for one in settled if one is not None]
        emitted = Counter(replicas)
        ids = {
            replica: map(f"{operator.id}-{replica}-{self._txid}.%d".__mod__, range(1, number + 1))
            for replica, number in emitted.items()
        }
        outcome.emitted[operator.id] = Emitted(list(map(next, map(ids.__getitem__, replicas))), replicas, rows)
        for replica, number in emitted.items():
            outcome.counts.setdefault((operator.id, replica), Counts()).emitted = number

    def _hold(self, turn: Turn) -> None:
        """Take over what was held before the turn and in it; what was held before, and still is, keeps its age."""
        if turn.returned:
            places: dict[str, list[int]] = {}
            for at, id in enumerate(self._ids):
                if at not in self._holding:
                    places.setdefault(id, []).append(at)
            for item, replica, reason in turn.returned:
                self._holding[places[item.id].pop(0)] = replica, reason
        done: set[str] = set()
        if self._holding and turn.semantics != AT_LEAST_ONCE:
            done = turn.results.keys() | {one.item.id for one in turn.lost}
        stay: dict[int, Held] = {}
        for at, (replica, reason) in sorted(self._holding.items()):
            item = Item(self._ids[at], self._fields[at])
            before = self._released[at] if at < len(self._released) else None
            if item.id in done:
                continue
            if turn.semantics != AT_LEAST_ONCE:
                done.add(item.id)
            age = next(self._ages) if before is None else before.at
            one = Held(turn.operator.id, replica, age, item, reason)
            if before is not None and before.replica == replica:
                stay[at] = one
            else:
                self.outcome.held.append(one)
        last = {one.replica: one.at for at, one in enumerate(self._released) if at not in stay}
        for at, one in enumerate(self._released):
            if at not in stay or one.at < last.get(one.replica, 0):
                self.outcome.released.append(one)
                self.outcome.held += [stay[at]] if at in stay else []
