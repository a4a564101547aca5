"""Random networks and schedules against a naive model of the rules, for each of the three semantics.

The world has replicas that answer in pieces, over wires on which answers are late; they die, fall silent, wake, forget
deliveries, are frozen, slowed and made anew; the master is killed, and replays. Of each transaction the model is told
which tuples were lost, handed back and repeated, and must find all else: emitted tuples with their ids, order, and what
is held; the world checks from outside that these could be lost, handed back and repeated. In the end all are healed,
and nothing may be missing. ``SEED=n`` starts with that schedule, a failure names its seed; ``SCHEDULES``: their number.
"""

import os
import random
from collections import Counter, deque
from dataclasses import dataclass, field
from itertools import count

import pytest

from txstorm import keys
from txstorm.dadstorm.conditions import Conditions, going
from txstorm.dadstorm.configuration import Command, Configuration, Operator, Source
from txstorm.dadstorm.delivery import Deliver, Item
from txstorm.dadstorm.network import Held, Lines, Network

SEMANTICS = ("at-most-once", "at-least-once", "exactly-once")
TIMEOUT = 10.0


def some_network(rng, semantics):
    """Draw one to five operators: of every type and routing, with several inputs and consumers."""
    operators = []
    for number in range(rng.choice((1, 2, 2, 3, 3, 4, 5))):
        inputs = [f"O{other}" for other in range(number) if rng.random() < (0.8 if other == number - 1 else 0.3)]
        sources = [Source("operator", one) for one in inputs]
        if not inputs or rng.random() < 0.2:
            sources.insert(rng.randrange(len(sources) + 1), Source("file", f"f{number}.data"))
        replicas, routing = rng.randrange(1, 4), rng.choice(("primary", "random", "hashing"))
        hashed = rng.randrange(1, 4) if routing == "hashing" else None
        kind = rng.choice(("UNIQ", "COUNT", "DUP", "DUP", "FILTER", "CUSTOM", "CUSTOM"))
        addresses = tuple(f"tcp://host:{number}{replica}" for replica in range(replicas))
        operators.append(Operator(f"O{number}", tuple(sources), replicas, routing, hashed, addresses, kind, ("1",)))
    return Configuration(semantics, "light", tuple(operators), ())


def work(operator, fields):
    """What a replica makes of a tuple."""
    if operator.type == "FILTER":
        return [fields] if fields[0] < "c" else []
    return [[*fields], ["z", *fields]][: len(fields[-1]) % 3] if operator.type == "CUSTOM" else [fields]


# -- the model -------------------------------------------------------------------------------------------------------


def route(operator, item, live):
    if operator.routing == "random":
        return live[keys.hash_value(item.id) % len(live)]
    if operator.routing == "primary" or operator.routing_field > len(item.fields):
        return live[0]
    owner = keys.task_of(keys.key_group([item.fields[operator.routing_field - 1]]), operator.replicas)
    return min(live, key=lambda one: (one - owner) % operator.replicas)


@dataclass
class Model:
    """States of UNIQ and COUNT, and the rules: one tuple after the other, without any deliveries."""

    network: Configuration
    seen: dict = field(default_factory=dict)
    counted: Counter = field(default_factory=Counter)

    def carry(self, plan, gone, extra):
        """Return what each operator emits, what is held afterwards, and the tuples that were given to replicas."""
        ages, emitted, held, given = count(plan.txid << 24 | 1), {}, [], []
        for name in self.network.order():
            operator = self.network.operator(name)
            live = plan.conditions.live(operator)
            used, numbers, made = Counter(), Counter(), []
            for item, place, before in self.arrivals(operator, plan, emitted, live):
                reason = None
                if name not in plan.conditions.started:
                    reason = "not started"
                elif not live:
                    reason = "no live replica"
                else:
                    place = place if place in live else route(operator, item, live)
                    interval = plan.conditions.intervals.get(name, 0)
                    if (name, place) in plan.conditions.frozen:
                        reason = "frozen"
                    elif interval and used[place] >= max(1, 500 // interval):
                        reason = "interval"
                replica = place
                if not reason:
                    used[place] += 1
                    given.append((name, item.id))
                    replica, reason = gone.get((name, item.id), (place, None))
                if reason == "lost":
                    continue
                if reason:
                    held.append(Held(name, replica, before.at if before else next(ages), item, reason))
                    continue
                for fields in (1 + extra[name, item.id]) * work(operator, item.fields):
                    for one in self.settled(operator, tuple(fields)):
                        numbers[place] += 1
                        made.append((f"{name}-{place}-{plan.txid}.{numbers[place]}", place, one))
            emitted[name] = made
        return emitted, held, given

    def arrivals(self, operator, plan, emitted, live):
        for one in sorted(plan.held, key=lambda one: one.at):
            if one.operator == operator.id:
                yield one.item, one.replica, one
        for source in operator.sources:
            if source.kind == "operator":
                yield from ((Item(id, fields), -1, None) for id, _, fields in emitted[source.text])
                continue
            for lines in plan.lines:
                if lines.operator == operator.id:
                    place = -1 if lines.replica is None else lines.replica
                    if live and lines.replica is not None and place not in live:
                        place = live[0]
                    yield from ((item, place, None) for item in lines.items)

    def settled(self, operator, fields):
        if operator.type == "COUNT":
            self.counted[operator.id] += 1
            return [(str(self.counted[operator.id]),)]
        if operator.type == "UNIQ":
            seen = self.seen.setdefault(operator.id, set())
            new = fields[0] not in seen
            seen.add(fields[0])
            return [fields] if new else []
        return [fields]


# -- the world -------------------------------------------------------------------------------------------------------


@dataclass
class Plan:
    """One planned transaction: what is pinned in its metadata."""

    txid: int
    conditions: Conditions
    lines: list
    held: list


@dataclass
class Process:
    """One simulated replica: what it has to do, what it has answered, and whether the master may hear of it."""

    inbox: deque = field(default_factory=deque)
    wire: deque = field(default_factory=deque)
    alive: bool = True
    asleep: bool = False


class World:
    """One schedule."""

    def __init__(self, seed, semantics):
        self.rng = random.Random(seed)
        self.network = some_network(self.rng, semantics)
        self.model = Model(self.network)
        self.state = Model(self.network)  # that of the machine's run
        self.conditions = Conditions()
        for one in self.network.operators:
            if self.rng.random() < 0.8:
                self.conditions, _ = self.conditions.apply(Command("Start", one.id))
        self.now, self.plan, self.held, self.fed, self.txid = 0.0, None, [], Counter(), 0
        self.buffer = self.rng.choice((1, 1, 3))
        self.calm, self.forgetful = self.rng.choice((0, 0.5, 0.8, 0.9)), self.rng.choice((0, 0, 0.2))
        self.emitted = {one.id: [] for one in self.network.operators}
        self.places = [(one.id, replica) for one in self.network.operators for replica in range(one.replicas)]
        self.feeds = deque(self.some_lines() for _ in range(self.rng.randrange(1, 6)))
        self.open()

    def some_lines(self):
        lines = []
        for one in self.network.first():
            name = next(source.text for source in one.sources if source.kind == "file")
            for part in self.rng.sample((None, *range(one.replicas)), self.rng.randrange(2)):
                items = []
                for _ in range(self.rng.randrange(1, 7)):
                    self.fed[name] += 1
                    fields = (self.rng.choice("abcd"), "x" * self.rng.randrange(4), str(self.fed[name]))
                    items.append(Item(f"{name}:{self.fed[name]}", fields[self.rng.randrange(2) :]))
                lines.append(Lines(one.id, part, items))
        return lines

    def open(self):
        self.machine = Network(self.network, self.conditions, TIMEOUT, self.buffer)
        self.processes = {one: Process() for one in self.places}
        self.carrying = False

    def do(self, effects):
        for effect in effects:
            process = self.processes[effect.operator, effect.replica]
            if not isinstance(effect, Deliver):
                process.inbox = deque(one for one in process.inbox if one[0] != effect.number)
                continue
            assert (effect.operator, effect.replica) not in self.conditions.dead | self.conditions.frozen
            self.sent[effect.number] = effect
            if process.alive and self.rng.random() > self.forgetful:
                process.inbox.append((effect.number, deque(effect.items)))
            else:
                self.breaks(effect)

    def begin(self):
        if self.plan is None:
            limits = going(self.network, self.conditions, Counter((one.operator, one.replica) for one in self.held))
            held = []
            for one in sorted(self.held, key=lambda one: one.at):
                limits[one.operator, one.replica] = limits.get((one.operator, one.replica), 0) - 1
                held += [one] if limits[one.operator, one.replica] >= 0 else []
            if not held and not self.feeds:
                return False
            self.plan = Plan(self.txid + 1, self.conditions, self.feeds.popleft() if self.feeds else [], held)
        self.carrying, self.sent, self.broken, self.answers = True, {}, set(), Counter()
        self.frozen = set(self.conditions.frozen)
        self.empty = {one.id for one in self.network.operators if not self.conditions.live(one)}
        self.attempt = Model(self.network, {one: {*seen} for one, seen in self.state.seen.items()}, +self.state.counted)
        plan = self.plan
        self.do(self.machine.begin(plan.txid, plan.conditions, plan.lines, plan.held, self.settle, self.now))
        return True

    def settle(self, name, rows):
        made = [self.attempt.settled(self.network.operator(name), fields) for fields in rows]
        return [one[0] if one else None for one in made]

    # -- events --

    def step(self):
        """Let one thing happen; return whether anything did."""
        if not self.carrying:
            return self.begin()
        working = [one for one in self.processes.values() if one.inbox and one.alive and not one.asleep]
        talking = [place for place, one in self.processes.items() if one.wire]
        if self.rng.random() > self.calm:
            self.disturb()
        elif working and (not talking or self.rng.random() < 0.5):
            self.work(self.rng.choice(working))
        elif talking:
            self.hear(self.rng.choice(talking))
        elif self.machine.due is not None:
            self.tick(self.machine.due)
        else:
            assert self.machine.outcome is not None
        self.frozen |= self.conditions.frozen
        self.empty |= {one.id for one in self.network.operators if not self.conditions.live(one)}
        if self.carrying and self.machine.outcome is not None:
            self.commit(self.machine.outcome)
        return True

    def work(self, process):
        number, items = process.inbox[0]
        operator = self.network.operator(self.sent[number].operator)
        piece = [items.popleft() for _ in range(min(len(items), self.rng.randrange(1, 4)))]
        process.wire.append((number, [(item.id, work(operator, item.fields)) for item in piece]))
        if not items:
            process.inbox.popleft()

    def hear(self, place):
        number, answers = self.processes[place].wire.popleft()
        if number is None:
            self.end(*place)
            return
        self.answers.update((place[0], id) for id, _ in answers)
        self.do(self.machine.answered(place[0], number, answers, self.now))

    def tick(self, now):
        self.now = now
        self.breaks(*self.sent.values())
        self.do(self.machine.tick(now))

    def end(self, name, replica):
        """The master learns that a replica is dead, or gives it up."""
        process = self.processes[name, replica]
        process.alive = False
        self.breaks(*(one for one in self.sent.values() if one[:2] == (name, replica)))
        self.conditions = self.conditions.died(name, replica)
        self.do(self.machine.dead(name, replica, self.now))

    def breaks(self, *deliveries):
        self.broken.update((one.operator, item.id) for one in deliveries for item in one.items)

    def disturb(self):
        place = self.rng.choice(self.places)
        process = self.processes[place]
        what = self.rng.randrange(12)
        if what == 0 and process.alive:
            process.alive = False
            process.wire.append((None, ()))
        elif what == 1:
            process.asleep = not process.asleep
        elif what == 2 and process.asleep and place not in self.conditions.dead:
            self.end(*place)
        elif what == 3 and self.machine.due is not None:
            self.tick(max(self.now, self.machine.due - self.rng.choice((0, 0, 1))))
        elif what == 4 and self.rng.random() < 0.3:
            self.open()
        elif what == 5 and self.rng.random() < 0.3:
            self.begin()  # another attempt: answers to the former one are under way
        else:
            name = self.rng.choice(("Start", "Crash", "Freeze", "Unfreeze", "Unfreeze", "Interval"))
            number = self.rng.choice((0, 100, 300, 1000)) if name == "Interval" else place[1]
            self.command(Command(name, place[0], None if name == "Start" else number))

    def command(self, command):
        before, place = self.conditions, (command.operator, command.number)
        self.conditions, refused = before.apply(command)
        if refused:
            assert self.conditions == before
        elif command.name == "Start":
            for one in before.dead - self.conditions.dead:
                late = [answer for answer in self.processes[one].wire if answer[0] is not None]
                self.processes[one] = Process(wire=deque(late))
                self.machine.started(*one)
        elif command.name == "Crash":
            self.end(*place)
        elif command.name == "Freeze":
            self.do(self.machine.frozen(*place, self.now))
        elif command.name == "Unfreeze":
            self.machine.thawed(*place)

    # -- what must hold --

    def commit(self, outcome):
        plan, ended = self.plan, self.network.semantics
        ages = {one.at for one in outcome.released}
        held = [one for one in self.held if one.at not in ages] + outcome.held
        lost = {(one.operator, one.item.id) for one in outcome.lost}
        extra = Counter(outcome.repeated)
        gone = {(one.operator, one.item.id): (one.replica, one.reason) for one in held} | dict.fromkeys(
            lost, (None, "lost")
        )
        emitted, expected, given = self.model.carry(plan, gone, extra)
        offered = {one.at for one in plan.held}
        expected += [one for one in self.held if one.at not in offered]
        assert {
            name: [*zip(one.ids, one.replicas, one.fields, strict=True)] for name, one in outcome.emitted.items()
        } == emitted
        assert sorted(one[:4] for one in held) == sorted(one[:4] for one in expected)
        assert {one.at: one for one in outcome.held}.items() <= {one.at: one for one in expected}.items()
        assert (self.attempt.seen, +self.attempt.counted) == (self.model.seen, +self.model.counted)
        for key in {one[:2] for one in plan.held}:  # a prefix of each
            keys_ = sorted(one.at for one in plan.held if one[:2] == key)
            released = [one for one in outcome.released if one[:2] == key]
            assert sorted(one.at for one in released) == keys_[: len(released)]
        assert len(lost) == len(outcome.lost)
        assert not lost or (ended == "at-most-once" and lost <= self.broken)
        assert not extra or (ended == "at-least-once" and all(more < self.answers[key] for key, more in extra.items()))
        for one in outcome.held:
            if (one.operator, one.item.id) in given:
                assert one[:2] in self.frozen if one.reason == "frozen" else one.operator in self.empty
        received = Counter(dict.fromkeys(outcome.counts, 0))
        for one in self.sent.values():
            received[one[:2]] += len(one.items)
        assert received == {place: one.received for place, one in outcome.counts.items()}
        processed = sum(one.processed for one in outcome.counts.values())
        assert processed == len({*given} - gone.keys()) + extra.total()
        assert outcome.resent == sum(one.again for one in self.sent.values())
        assert not any(self.machine.pending(*place) for place in self.places)
        for name, rows in emitted.items():
            self.emitted[name] += rows
        self.held, self.state, self.txid, self.plan, self.carrying = held, self.attempt, plan.txid, None, False

    def run(self):
        for _ in range(self.rng.randrange(20, 120)):
            self.step()
        self.buffer = self.rng.choice((1, 1, 3))
        self.calm, self.forgetful = 1, 0
        for process in self.processes.values():
            process.asleep = False
        for one in self.network.operators:
            self.command(Command("Interval", one.id, 0))
        moving = True
        while moving:
            for name, replica in self.conditions.frozen:
                self.command(Command("Unfreeze", name, replica))
            for one in self.network.operators:
                self.command(Command("Start", one.id))
            moving = False
            while self.step():
                moving = True
        assert not self.held and not self.feeds and self.plan is None
        for operator in self.network.operators:
            ids = [id for id, *_ in self.emitted[operator.id]]
            assert len(ids) == len(set(ids))
            if operator.type == "COUNT":
                assert [one for *_, (one,) in self.emitted[operator.id]] == [str(n + 1) for n in range(len(ids))]


FIRST, SCHEDULES = int(os.environ.get("SEED", "0")), int(os.environ.get("SCHEDULES", "350"))


def run_schedules(semantics, seeds):
    for seed in seeds:
        try:
            World(seed, semantics).run()
        except Exception as error:
            error.add_note(f"schedule of SEED={seed}, {semantics}")
            raise


@pytest.mark.parametrize("semantics", SEMANTICS)
def test_random_schedules_carry_what_the_model_carries(semantics):
    run_schedules(semantics, range(FIRST, FIRST + SCHEDULES))


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("semantics", SEMANTICS)
def test_many_random_schedules_carry_what_the_model_carries(semantics):
    run_schedules(semantics, range(FIRST + SCHEDULES, FIRST + 60 * SCHEDULES))
