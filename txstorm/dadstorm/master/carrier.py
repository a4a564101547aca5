"""Carrier: the committer that carries the tuples of a transaction through the network of replicas, and its tables."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from txstorm.api.attempt import TransactionAttempt
from txstorm.api.bolt import BatchBolt, Committer
from txstorm.api.context import TaskContext
from txstorm.api.output import Collector
from txstorm.api.state import CollectionState, KeyedState, SinkTable, arrow_type
from txstorm.dadstorm.conditions import Conditions, Replica, going
from txstorm.dadstorm.configuration import Configuration, Operator
from txstorm.dadstorm.delivery import Deliver, Item, Items
from txstorm.dadstorm.network import Emitted, Held, Lines, Network, Outcome
from txstorm.dadstorm.operators import Counted, Seen, Work, failure, load_code, settle, writes_lines
from txstorm.dadstorm.source.columns import TUPLES, fields_of, split_lines
from txstorm.dadstorm.topology import count_state, emitted_sink, kept, lines_sink, seen_state
from txstorm.dadstorm.values import Fields
from txstorm.errors import TxstormError
from txstorm.storage.rows.schema import OP, PREV, UPDATED

HELD = CollectionState(
    "held", {"operator": str, "replica": int}, {"id": str, "fields": TUPLES, "reason": str}, order={"at": int}
)
"""Tuples that cannot go on yet, by age; replica -1: not routed yet."""
NUMBERS = ("received", "processed", "emitted", "held", "lost", "repeated", "resent")
OLDEST = "oldest"
TRAFFIC = KeyedState("traffic", {"operator": str, "replica": int}, dict.fromkeys((*NUMBERS, OLDEST), int))
"""Numbers of tuples of each replica since the directory is there; what concerns no replica has `TOTAL` as its key.

Nothing that it holds is older than `OLDEST`: so what went on long ago is not looked at again.
"""
TOTAL: Replica = ("", -1)
LOST = SinkTable("lost", {"operator": str, "replica": int, "id": str, "fields": TUPLES})
"""Tuples given up under at-most-once."""
PLAN, LINES = "plan", "default"
"""Streams of the source: the conditions of a transaction, and the lines that it reads."""
Traffic = dict[Replica, dict[str, int]]


class CustomFailed(TxstormError):
    """Raised if the code of an operator raises for a tuple, or returns something else than lists of lists of str."""


@dataclass
class Carried:
    """Effects of a transaction, for counters and the log.

    Attributes:
        traffic: the numbers after it.
        emitted: operator → the tuples that it emitted and that are kept.
        held: (operator, replica, reason) → how many tuples it held.
        lost: the tuples that were given up.
    """

    traffic: Traffic = field(default_factory=dict)
    emitted: Mapping[str, Emitted] = field(default_factory=dict)
    held: Mapping[tuple[str, int, str], int] = field(default_factory=dict)
    lost: Sequence[Any] = ()


class Trip(NamedTuple):
    """A transaction to be carried; what `Network.begin` takes.

    Attributes:
        txid, planned, lines, held, settle: see `Network.begin`.
        left_out: called with operator, id, fields and text of a tuple for which an operator's code failed: makes it a
            dead letter, or raises.
    """

    txid: int
    planned: Conditions
    lines: Sequence[Lines]
    held: Sequence[Held]
    settle: Callable[[str, Sequence[Fields]], Sequence[Fields | None]]
    left_out: Callable[[str, Item, str], None]


class Carrier(BatchBolt, Committer):
    """Committer that carries lines and held tuples through the network: over the fleet of the run, or in this process.

    Args:
        configuration: the network.
        run: the run, whose `carry` is called with each `Trip`; while it is not open, tuples are carried in this
            process, as in a replay.
        rows: held tuples of each replica that go on in a transaction at most.
        allow: modules that CUSTOM operators may name.
    """

    def __init__(self, configuration: Configuration, run: Any, rows: int, allow: Sequence[str] = ()) -> None:
        self.configuration, self.run, self.rows, self.allow = configuration, run, rows, tuple(allow)
        stateful = [one for one in configuration.operators if one.type in ("UNIQ", "COUNT")]
        self.states = (HELD, TRAFFIC, *(_state(one) for one in stateful))
        self.sinks = (LOST, *(emitted_sink(one) for one in configuration.operators if kept(one, configuration)))
        self.files = {
            one.id: lines_sink(one, configuration).outlet
            for one in configuration.operators
            if writes_lines(one, configuration)
        }
        self.outlets = tuple(self.files.values())

    def prepare(self, context: TaskContext, collector: Collector, attempt: TransactionAttempt) -> None:
        """Set up for one batch."""
        self._context, self._attempt = context, attempt
        self._planned = Conditions()
        self._lines: list[Lines] = []
        self._steps: dict[str, Seen | Counted] = {}

    def execute_batch(self, batch: pa.RecordBatch) -> None:
        """Take the conditions of the transaction, or lines of it."""
        source = self._context.source
        if source is not None and source[1] == PLAN:
            self._planned = Conditions.from_json(json.loads(batch.column(0)[0].as_py()))
            return
        receivers, ids, fields = batch.columns[:2], batch.column(2).to_pylist(), fields_of(split_lines(batch.column(3)))
        ends = {end for one in receivers for end in pc.run_end_encode(one).run_ends.to_pylist()}
        for start, stop in pairwise([0, *sorted(ends)]):
            operator, replica = (one[start].as_py() for one in receivers)
            self._lines.append(Lines(operator, replica, Items(ids[start:stop], fields[start:stop])))

    def finish_batch(self) -> None:
        """Carry the tuples through the network, and write what came of it."""
        context = self._context
        traffic = {key: dict(row) for key, row in context.state(TRAFFIC.name).get_many(self._replicas()).items()}
        counts = {key: row["held"] for key, row in traffic.items() if row["held"]}
        released = self._released(counts, traffic)
        trip = Trip(self._attempt.txid, self._planned, self._lines, released, self._settle, self._left_out)
        carry = self.run.carry if self.run is not None and self.run.is_open else partial(carry_here, self)
        outcome = carry(trip)
        done = self._write(outcome, traffic, trip.held)
        if self.run is not None:
            self.run.carried(trip.txid, done)

    def not_reproduced(self, changes: Mapping[str, pa.Table]) -> str | None:
        """Return what happened to tuples of a transaction that a replay, in which no replica fails, does not repeat."""
        found, numbers = Counter[str](), changes.get(TRAFFIC.name)
        for row in () if numbers is None else numbers.to_pylist():
            before = row[PREV] or {}
            found.update({name: row[name] - (before.get(name) or 0) for name in ("lost", "repeated", "resent")})
        held = changes.get(HELD.name)
        moved = [] if held is None else held[OP.name].to_pylist()
        found["held"], went_on = moved.count(UPDATED), len(moved) > moved.count(UPDATED)
        said = [f"{found[name]:,} {name}" for name in ("held", "lost", "repeated", "resent") if found[name]]
        said += ["some went on that had been held"] if went_on else []
        return f"of its tuples {', '.join(said)}" if said else None

    # -- reading ------------------------------------------------------------------------------------------------

    def _replicas(self) -> list[Replica]:
        operators = self.configuration.operators
        return [TOTAL, *((one.id, replica) for one in operators for replica in range(-1, one.replicas))]

    def _released(self, counts: Mapping[Replica, int], traffic: Traffic) -> list[Held]:
        """Return the held tuples that go on, the oldest of each replica."""
        found = []
        held = self._context.collection(HELD.name) if counts else None
        for (operator, replica), number in going(self.configuration, self._planned, counts).items():
            assert held is not None
            key, most = (operator, replica), min(number, self.rows)
            for at, id, fields, reason in held.scan(key, traffic[key][OLDEST], limit=most):
                found.append(Held(operator, replica, at, Item(id, tuple(fields)), reason))
        return found

    def _settle(self, operator: str, results: Sequence[Fields]) -> Sequence[Fields | None]:
        """Apply the step of UNIQ or COUNT to what reached the operator."""
        found = self.configuration.operator(operator)
        handle = self._context.state(_state(found).name)
        step = self._steps.get(operator)
        if step is None:
            known = lambda values: handle.get_many(values).keys()  # noqa: E731
            step = Seen(known) if found.type == "UNIQ" else Counted(handle.get(operator, 0))
            self._steps[operator] = step
        return settle(found, step, results)

    def _left_out(self, operator: str, item: Item, text: str) -> None:
        error = CustomFailed(text)
        record = {"operator": operator, "id": item.id, "fields": list(item.fields)}
        if self._context.divert is None or not self._context.divert(error, record):
            raise error

    # -- writing ------------------------------------------------------------------------------------------------

    def _write(self, outcome: Outcome, traffic: Traffic, given: Sequence[Held]) -> Carried:
        context, before = self._context, {key: dict(row) for key, row in traffic.items()}
        zeros = dict.fromkeys((*NUMBERS, OLDEST), 0)
        numbers: defaultdict[Replica, dict[str, int]] = defaultdict(zeros.copy, traffic)
        for key, one in outcome.counts.items():
            for name in ("received", "processed", "emitted"):
                numbers[key][name] += getattr(one, name)
        moved = Counter((one.operator, one.replica) for one in outcome.held)
        moved.subtract((one.operator, one.replica) for one in outcome.released)
        for key, number in moved.items():
            numbers[key]["held"] += number
        for gone in outcome.released:
            row = numbers[gone.operator, gone.replica]
            row[OLDEST] = max(row[OLDEST], gone.at + 1)
        for held in outcome.held:
            row = numbers[held.operator, held.replica]
            row[OLDEST] = min(row[OLDEST], held.at)
        for lost in outcome.lost:
            numbers[lost.operator, lost.replica]["lost"] += 1
        numbers[TOTAL]["repeated"] += len(outcome.repeated)
        numbers[TOTAL]["resent"] += outcome.resent
        context.state(TRAFFIC.name).put_many(
            {key: row for key, row in numbers.items() if row != before.get(key, zeros)}
        )
        self._write_held(outcome, given)
        for operator, step in self._steps.items():
            handle = context.state(_state(self.configuration.operator(operator)).name)
            if isinstance(step, Seen):
                handle.put_many(dict.fromkeys(step.added, True))
            else:
                handle.put(operator, step.n)
        if outcome.lost:
            _append(
                context, LOST, [*zip(*((one.operator, one.replica, *one.item) for one in outcome.lost), strict=True)]
            )
        reasons = Counter((one.operator, one.replica, one.reason) for one in outcome.held)
        return Carried(dict(numbers), self._write_emitted(outcome), reasons, outcome.lost)

    def _write_held(self, outcome: Outcome, given: Sequence[Held]) -> None:
        if not outcome.held and not outcome.released:
            return
        held = self._context.collection(HELD.name)
        for key, places in _places(outcome.released).items():
            if places == _places(given)[key][: len(places)]:
                held.remove(key, places[0], places[-1])
            else:
                for at in places:
                    held.remove(key, at, at)
        held.append_many(((one.operator, one.replica), one.at, *one.item, one.reason) for one in outcome.held)

    def _write_emitted(self, outcome: Outcome) -> dict[str, Emitted]:
        found: dict[str, Emitted] = {}
        for operator, rows in outcome.emitted.items():
            one = self.configuration.operator(operator)
            if rows.ids and kept(one, self.configuration):
                found[operator] = rows
                urls = [one.addresses[replica] for replica in rows.replicas]
                _append(self._context, emitted_sink(one), [rows.replicas, urls, rows.ids, rows.fields])
            if operator in self.files:
                sink = self._context.sink(self.files[operator].name)
                for fields in rows.fields:
                    sink.append(", ".join(fields))
        return found


def _state(operator: Operator) -> KeyedState:
    return seen_state(operator) if operator.type == "UNIQ" else count_state(operator)


def _places(held: Iterable[Held]) -> dict[Replica, list[int]]:
    found: defaultdict[Replica, list[int]] = defaultdict(list)
    for one in held:
        found[one.operator, one.replica].append(one.at)
    return {key: sorted(places) for key, places in found.items()}


def _append(context: TaskContext, sink: SinkTable, columns: Sequence[Sequence[Any]]) -> None:
    types = [arrow_type(kind) for kind in sink.columns.values()]
    arrays = [pa.array(one, kind) for one, kind in zip(columns, types, strict=True)]
    context.sink(sink.name).append_batch(pa.table(arrays, names=list(sink.columns)))


def carry_here(carrier: Carrier, trip: Trip) -> Outcome:
    """Carry a transaction in this process, with the conditions that were recorded: no replica fails."""
    configuration, codes = carrier.configuration, dict[str, Work]()
    network = Network(configuration, trip.planned)
    effects = list(network.begin(*trip[:5], now=0.0))
    while (outcome := network.outcome) is None:
        one = effects.pop(0)
        if not isinstance(one, Deliver):
            continue
        if one.operator not in codes:
            operator = configuration.operator(one.operator)
            codes[one.operator] = load_code(operator, configuration, carrier.allow)
        answers = [(item.id, _worked(carrier, codes[one.operator], one.operator, item, trip)) for item in one.items]
        effects += network.answered(one.operator, one.number, answers, 0.0)
    return outcome


def _worked(carrier: Carrier, work: Work, operator: str, item: Item, trip: Trip) -> Sequence[Fields]:
    try:
        return work(item.fields)
    except Exception as error:  # noqa: BLE001 - user code
        trip.left_out(operator, item, failure(carrier.configuration.operator(operator), item.fields, error))
        return ()
