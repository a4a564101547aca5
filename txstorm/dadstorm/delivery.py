"""Delivery machine: one operator's turn in a transaction, under each of the three semantics.

Pure: events and the time are its input, effects its output. The semantics differ in three places only: what becomes of
a delivery that is overdue or broken, which answers count, and which tuples are sent again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from txstorm.dadstorm.conditions import FROZEN, NO_REPLICA, UNROUTED, Conditions, Replica
from txstorm.dadstorm.configuration import AT_LEAST_ONCE, AT_MOST_ONCE, Operator, Semantics
from txstorm.dadstorm.values import Fields

Answers = Sequence[tuple[str, Sequence[Sequence[str]]]]
"""A piece of an answer: ids of tuples of a delivery, each with the tuples that came of it. No piece has one again."""


class Item(NamedTuple):
    """A tuple on its way to an operator: its id and its fields."""

    id: str
    fields: Fields


@dataclass(frozen=True)
class Items:
    """Many tuples as columns, since the master has every tuple in its hands: a sequence of `Item`."""

    ids: Sequence[str]
    fields: Sequence[Fields]

    @classmethod
    def of(cls, items: Items | Sequence[tuple[str, Fields]]) -> Items:
        """Return tuples as columns."""
        return items if isinstance(items, Items) else cls([id for id, _ in items], [fields for _, fields in items])

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[Item]:
        return map(Item, self.ids, self.fields)


class Deliver(NamedTuple):
    """Effect: send `items` to a replica, as the delivery `number`, which is never used again.

    `again`: they were sent before, and the delivery became overdue, or broke.
    """

    operator: str
    replica: int
    number: int
    items: Items
    again: bool = False


class Withdraw(NamedTuple):
    """Effect: the replica need not process the rest of the delivery `number`; answers to it are dropped."""

    operator: str
    replica: int
    number: int


Effect = Deliver | Withdraw


class Returned(NamedTuple):
    """A tuple that was handed back, to be held: the replica whose turn it waits for, and the reason."""

    item: Item
    replica: int
    reason: str


class Lost(NamedTuple):
    """A tuple that was given up (at most once): the operator and replica that should have processed it."""

    operator: str
    replica: int
    item: Item


@dataclass
class Crew:
    """Replicas that are dead or frozen at present, whatever a transaction was planned with."""

    dead: set[Replica]
    frozen: set[Replica]

    @classmethod
    def of(cls, conditions: Conditions) -> Crew:
        """Return the crew that `conditions` tell of."""
        return cls(set(conditions.dead), set(conditions.frozen))

    def substitute(self, operator: Operator, replica: int) -> int | None:
        """Return the live replica that takes what `replica` did not answer; None: there is none.

        It is the next one, cyclically; `replica` itself only where all others are dead or frozen, and a frozen one only
        where no other is live.
        """
        following = [(replica + step) % operator.replicas for step in range(1, operator.replicas + 1)]
        live = [one for one in following if (operator.id, one) not in self.dead]
        return min(live, key=lambda one: ((operator.id, one) in self.frozen, one == replica), default=None)


@dataclass
class _Delivery:
    """One delivery: tuples for a replica, and what is known of it.

    Attributes:
        replica: the replica that it is for; of a resend that is not addressed yet, the one that did not answer.
        items: the tuples.
        limit: seconds without an answer after which it is overdue.
        left: tuples not answered by it.
        last: when it was sent, or last answered.
        late: whether its tuples were sent again: whatever happens to it, the other one stands for them.
        again: whether its tuples were sent before.
    """

    replica: int
    items: Items
    limit: float
    left: int
    last: float = 0.0
    late: bool = False
    again: bool = False


class Turn:
    """Turn of one operator in a transaction: from the delivery of its tuples until none is waited for.

    Args:
        operator: the operator.
        semantics: of the network.
        crew: present condition of all replicas, which the caller keeps, before it calls a method.
        limit: seconds without an answer after which a delivery is overdue, before it is sent again.
        buffer: deliveries that a replica has at most.
        numbers: returns the number of the next delivery.
    """

    def __init__(
        self,
        operator: Operator,
        semantics: Semantics,
        crew: Crew,
        limit: float,
        buffer: int,
        numbers: Callable[[], int],
    ) -> None:
        self.results: dict[str, Sequence[Sequence[str]]] = {}
        """First answers that counted, by id."""
        self.further: dict[str, list[Sequence[Sequence[str]]]] = {}
        """Further answers that counted (at least once), by id."""
        self.returned: list[Returned] = []
        self.lost: list[Lost] = []
        self.resent = 0
        self.received: Counter[int] = Counter()
        self.processed: Counter[int] = Counter()
        self.operator = operator
        self.semantics = semantics
        self._crew = crew
        self._limit = limit
        self._buffer = buffer
        self._numbers = numbers
        self._open: dict[int, _Delivery] = {}
        self._queue: list[_Delivery] = []
        self._undisturbed = 0
        """Answers that are waited for, as long as each delivery is the only one of its tuples and goes on."""
        self._waiting: dict[str, int] = {}
        """Answers that are waited for, by id, since that is not so."""
        self._back: set[str] = set()
        """Ids of tuples that were handed back: answers do not count any more."""

    @property
    def over(self) -> bool:
        """Whether each tuple was answered, lost, or handed back."""
        return not (self._undisturbed or self._waiting)

    @property
    def due(self) -> float | None:
        """When the next delivery is overdue, unless it is answered before; None: never."""
        return min((one.last + one.limit for one in self._open.values() if not one.late), default=None)

    def pending(self, replica: int) -> int:
        """Return the number of tuples that a replica has received and not answered."""
        return sum(one.left for one in self._open.values() if one.replica == replica)

    def begin(self, shares: Mapping[int, Items], now: float) -> list[Effect]:
        """Deliver `shares`, the tuples routed to each replica; another one takes those of one that is dead by now."""
        self._shares, total = shares, sum(map(len, shares.values()))
        if len(set(chain.from_iterable(items.ids for items in shares.values()))) == total:
            self._undisturbed = total
        else:
            self._count_by_id()
        for replica, items in shares.items():
            self._address(_Delivery(replica, items, self._limit, len(items)))
        return self._send(now)

    def answered(self, number: int, answers: Answers, now: float) -> list[Effect]:
        """Count a piece of an answer; one to a delivery that is not open is dropped."""
        delivery = self._open.get(number)
        if delivery is None:
            return []
        delivery.last = now
        if self._undisturbed:
            self.results.update(answers)
            self._undisturbed -= len(answers)
            counted = len(answers)
        else:
            counted = self._every(answers) if self.semantics == AT_LEAST_ONCE else self._first(answers)
        self.processed[delivery.replica] += counted
        delivery.left -= len(answers)
        if delivery.left <= 0:
            del self._open[number]
        return self._send(now)

    def dead(self, replica: int, now: float) -> list[Effect]:
        """Give up, or send again, what a replica, dead by now, has not answered."""
        for number, one in self._of(replica):
            del self._open[number]
            self._renew(one)
        self._readdress(replica)
        return self._send(now)

    def frozen(self, replica: int, now: float) -> list[Effect]:
        """Withdraw the deliveries of a replica, frozen by now, and hand back what it has not answered."""
        effects: list[Effect] = []
        for number, one in self._of(replica):
            effects.append(self._withdraw(number))
            if not one.late:
                self._hand_back(one, replica, FROZEN)
        self._readdress(replica)
        return effects + self._send(now)

    def tick(self, now: float) -> list[Effect]:
        """Give up, or send again, what is overdue at the time `now`."""
        effects: list[Effect] = []
        for number, one in list(self._open.items()):
            if not one.late and one.last + one.limit <= now:
                if self.semantics == AT_MOST_ONCE:
                    effects.append(self._withdraw(number))
                self._renew(one)
        return effects + self._send(now)

    def abandon(self) -> list[Effect]:
        """Withdraw all deliveries: nothing is waited for any more."""
        self._undisturbed, self._waiting, self._queue = 0, {}, []
        return [self._withdraw(number) for number in list(self._open)]

    def _count_by_id(self) -> None:
        """Wait for each tuple by its id from now on: some are there twice, or will be, or stay behind."""
        ids = chain.from_iterable(items.ids for items in self._shares.values())
        left = (id for id in ids if id not in self.results)
        self._waiting = Counter(left) if self.semantics == AT_LEAST_ONCE else dict.fromkeys(left, 1)
        self._undisturbed = 0

    def _first(self, answers: Answers) -> int:
        waiting, results, before = self._waiting, self.results, len(self.results)
        for id, rows in answers:
            if waiting.pop(id, 0):
                results[id] = rows
        return len(results) - before

    def _every(self, answers: Answers) -> int:
        waiting, counted = self._waiting, 0
        for id, rows in answers:
            if id in self._back:
                continue
            counted += 1
            if waiting.get(id, 0) > 1:
                waiting[id] -= 1
            else:
                waiting.pop(id, 0)
            if id in self.results:
                self.further.setdefault(id, []).append(rows)
            else:
                self.results[id] = rows
        return counted

    def _of(self, replica: int) -> list[tuple[int, _Delivery]]:
        return [(number, one) for number, one in self._open.items() if one.replica == replica]

    def _withdraw(self, number: int) -> Withdraw:
        return Withdraw(self.operator.id, self._open.pop(number).replica, number)

    def _renew(self, one: _Delivery) -> None:
        """Give up what an overdue or broken delivery has left, or send it again."""
        one.late, was_late = True, one.late
        if self._undisturbed:
            self._count_by_id()
        left = [item for item in one.items if item.id in self._waiting]
        if was_late or not left:
            return
        if self.semantics == AT_MOST_ONCE:
            self.lost += [Lost(self.operator.id, one.replica, item) for item in left if self._waiting.pop(item.id, 0)]
            return
        if self.semantics == AT_LEAST_ONCE:
            left = [item for item in one.items if item.id not in self._back]
        self._address(_Delivery(one.replica, Items.of(left), 2 * one.limit, len(left), again=True))

    def _address(self, one: _Delivery) -> None:
        """Have a delivery sent to its replica, or, if that is dead or did not answer, to another one; or held."""
        operator, replica = self.operator, one.replica
        again = one.again or (operator.id, replica) in self._crew.dead
        to = self._crew.substitute(operator, replica) if again else replica
        if to is None:
            self._hand_back(one, UNROUTED, NO_REPLICA)
        elif (operator.id, to) in self._crew.frozen:
            self._hand_back(one, to, FROZEN)
        else:
            one.replica = to
            self._queue.append(one)

    def _readdress(self, replica: int) -> None:
        """Address again what is not sent yet to `replica`, which is dead or frozen by now."""
        waiting, self._queue = self._queue, []
        for one in waiting:
            if one.replica == replica:
                self._address(one)
            else:
                self._queue.append(one)

    def _hand_back(self, one: _Delivery, replica: int, reason: str) -> None:
        if self._undisturbed:
            self._count_by_id()
        for item in one.items:
            if item.id in self._waiting and item.id not in self.results:
                self.returned.append(Returned(item, replica, reason))
        self._back.update(one.items.ids)
        for id in one.items.ids:
            self._waiting.pop(id, None)

    def _send(self, now: float) -> list[Effect]:
        """Send what the buffers of the replicas have room for; when the turn is over, withdraw what is still open."""
        if self.over:
            return self.abandon()
        effects: list[Effect] = []
        waiting, self._queue = self._queue, []
        for one in waiting:
            open_ = self._of(one.replica)
            late = next((number for number, other in open_ if other.late), None)
            if len(open_) >= self._buffer and late is not None:
                effects.append(self._withdraw(late))
            elif len(open_) >= self._buffer:
                self._queue.append(one)
                continue
            number = self._numbers()
            self._open[number] = one
            one.last = now
            self.resent += one.again
            self.received[one.replica] += len(one.items)
            effects.append(Deliver(self.operator.id, one.replica, number, one.items, one.again))
        return effects
