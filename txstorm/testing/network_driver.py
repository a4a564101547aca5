"""Test driver of operator networks: replicas are objects, deaths and silence are calls, and time is a manual clock.

It is the delivery machine of production with other replicas; nothing is written. Data files are not read: tests feed.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from txstorm.api.names import near
from txstorm.dadstorm.conditions import Conditions, Replica, going
from txstorm.dadstorm.configuration import Command, Configuration, Operator, load, parse, parse_command
from txstorm.dadstorm.delivery import Deliver, Effect, Item, Withdraw
from txstorm.dadstorm.network import Emitted, Held, Lines, Network, Outcome
from txstorm.dadstorm.operators import Counted, Seen, Work, failure, load_code, settle
from txstorm.dadstorm.values import Fields, split_line
from txstorm.errors import InputError, TopologyFailed
from txstorm.testing.clock import ManualClock


@dataclass
class _TestReplica:
    """A replica as an object: the deliveries in its buffer, and the faults it is armed with."""

    work: Work
    inbox: deque[Deliver] = field(default_factory=deque)
    fail_after: int | None = None
    drops: bool = False
    silent_since: float | None = None


@dataclass
class _Plan:
    """A planned transaction, which is replayed as it is when the master was restarted before its commit."""

    txid: int
    conditions: Conditions
    lines: list[Lines]
    held: list[Held]
    state: dict[str, Seen | Counted] = field(default_factory=dict)


class NetworkTestDriver:
    """Runs the operator network of a configuration step by step, in this process.

    Commands of the text are carried out at construction. `settle` has the replicas process until nothing moves any
    more; `advance` does so, too, while time passes. Each call of `feed` is one transaction.

    Args:
        text: the text of a configuration, or the path of its file.
        directory: where relative paths, libraries and followers are; default: that of the file, or the working one.
        ack_timeout: seconds, besides the Interval, after which a delivery without an answer is overdue.
        ping: seconds after which a silent replica is given up.
        buffer: deliveries that a replica has at most.
        allow: further modules that may be libraries.

    Raises:
        ConfigurationError: the configuration has faults.
        InputError: an operator's code is missing.

    Attributes:
        clock: the manual clock: `advance`, Wait, and the sleep of replicas with an Interval move it.
        log: the lines of the log so far, as dicts.
        lost: number of tuples that were given up.
        repeated: number of further answers that counted.
    """

    def __init__(
        self,
        text: str | Path,
        directory: Path | str | None = None,
        *,
        ack_timeout: float = 10.0,
        ping: float = 12.0,
        buffer: int = 10,
        allow: Sequence[str] = (),
    ) -> None:
        self.configuration = _configuration(text, directory)
        self.clock = ManualClock()
        self.log: list[dict[str, Any]] = []
        self.lost = self.repeated = 0
        self._options: dict[str, Any] = {"ack_timeout": ack_timeout, "buffer": buffer}
        self._ping = ping
        self._now = 0.0
        self._conditions = Conditions()
        self._txid, self._carried = 0, False
        self._feeds: deque[list[Lines]] = deque()
        self._fed: Counter[str] = Counter()
        self._held: list[Held] = []
        self._emitted = {one.id: Emitted() for one in self.configuration.operators}
        self._seen: dict[str, set[str]] = {}
        self._counted: Counter[str] = Counter()
        self._received: Counter[Replica] = Counter()
        self._processed: Counter[Replica] = Counter()
        self._plan: _Plan | None = None
        self._work = {one.id: load_code(one, self.configuration, allow) for one in self.configuration.operators}
        self._replicas: dict[Replica, _TestReplica] = {}
        self._open()
        for command in self.configuration.commands:
            self._carry_out(command)
            self._conditions = self._conditions.step()

    # -- what a test does ------------------------------------------------------------------------------------------

    def feed(self, operator: str, tuples: Iterable[Sequence[str] | str], ids: Sequence[str] | None = None) -> None:
        """Have an operator read tuples in the next transaction; they are routed by its routing.

        Args:
            operator: its id.
            tuples: the tuples: sequences of fields, or lines of a data file.
            ids: their ids; default: ``SOURCE:1``, ``SOURCE:2``, …, SOURCE being its first file, topic or operator. Two
                tuples with one id are one tuple that is delivered twice.
        """
        one = self._operator(operator)
        fields = [split_line(line) if isinstance(line, str) else tuple(line) for line in tuples]
        kept = [item for item in fields if item is not None]
        if ids is None:
            first = next((source for source in one.sources if source.kind != "operator"), one.sources[0])
            ids = [f"{first.text}:{self._fed[one.id] + number}" for number in range(1, len(kept) + 1)]
        elif len(ids) != len(kept):
            msg = f"NetworkTestDriver.feed: {len(kept)} tuples and {len(ids)} ids; expected an id for each tuple"
            raise InputError(msg)
        self._fed[one.id] += len(kept)
        self._feeds.append([Lines(one.id, None, list(map(Item, ids, kept)))])

    def command(self, line: str) -> None:
        """Carry out a command, such as ``Crash OP1 0``; one that cannot be done is logged as ``refused``."""
        self._carry_out(parse_command(line, self.configuration))

    def settle(self) -> None:
        """Have replicas process, and transactions begin, until nothing moves any more, though time does not pass."""
        while True:
            self._pump()
            if self._plan is not None and self._network.outcome is not None:
                self._commit(self._plan, self._network.outcome)
            if self._carried or not self._begin():
                return

    def advance(self, seconds: float) -> None:
        """Let time pass: deliveries become overdue, and silent replicas are given up."""
        self.settle()
        end = self._now + seconds
        while (due := self._due()) is not None and due <= end:
            self._pass(due - self._now)
            for (operator, replica), one in list(self._replicas.items()):
                if one.silent_since is not None and one.silent_since + self._ping <= self._now:
                    self._die(operator, replica, f"silent for {self._ping:g} s: given up")
            self._do(self._network.tick(self._now))
            self.settle()
        self._pass(end - self._now)

    def fail(self, operator: str, replica: int, after: int = 0) -> None:
        """Have a replica die: `after` tuples of its next delivery are answered, the next is taken, and it dies."""
        self._replica(operator, replica).fail_after = after

    def silence(self, operator: str, replica: int) -> None:
        """Stop a replica as SIGSTOP does; after `ping` seconds it is given up."""
        self._replica(operator, replica).silent_since = self._now

    def wake(self, operator: str, replica: int) -> None:
        """Let a silent replica go on, as SIGCONT does; one that was given up has ended."""
        self._replica(operator, replica, live=False).silent_since = None

    def drop(self, operator: str, replica: int) -> None:
        """Have a replica forget its next delivery."""
        self._replica(operator, replica).drops = True

    def restart(self) -> None:
        """Kill the master and start it again: replicas that are not dead are made anew; an open txid is replayed."""
        self._carried = False
        self._open()

    # -- what a test looks at --------------------------------------------------------------------------------------

    def output(self, operator: str) -> list[Fields]:
        """Return the tuples that an operator has emitted, in order."""
        return list(self._emitted[self._operator(operator).id].fields)

    def ids(self, operator: str) -> list[str]:
        """Return the ids of the tuples that an operator has emitted, in order."""
        return list(self._emitted[self._operator(operator).id].ids)

    def received(self, operator: str, replica: int) -> int:
        """Return how many tuples a replica has received, those that were sent again included."""
        self._replica(operator, replica, live=False)
        return self._received[self._operator(operator).id, replica]

    @property
    def held(self) -> list[Held]:
        """The tuples that are held, by age."""
        return sorted(self._held, key=lambda one: one.at)

    def status(self) -> list[dict[str, Any]]:
        """Return the state and the counts of each replica."""
        held = Counter((one.operator, one.replica) for one in self._held)
        return [
            {
                "operator": one.id,
                "replica": replica,
                "url": one.addresses[replica],
                "state": self._state(one.id, replica),
                "received": self._received[one.id, replica],
                "processed": self._processed[one.id, replica],
                "emitted": self._emitted[one.id].replicas.count(replica),
                "pending": self._network.pending(one.id, replica),
                "held": held[one.id, replica],
            }
            for one in self.configuration.operators
            for replica in range(one.replicas)
        ]

    def _state(self, operator: str, replica: int) -> str:
        one = (operator, replica)
        if one in self._conditions.dead:
            return "crashed"
        if self._replicas[one].silent_since is not None:
            return "silent"
        if one in self._conditions.frozen:
            return "frozen"
        return "working" if operator in self._conditions.started else "not started"

    # -- the master ------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        """Open the network with the present conditions, and make all replicas that are not dead."""
        self._network = Network(self.configuration, self._conditions, **self._options)
        for one in self.configuration.operators:
            for replica in range(one.replicas):
                self._replicas[one.id, replica] = _TestReplica(self._work[one.id])

    def _carry_out(self, command: Command) -> None:
        before = self._conditions
        self._conditions, refused = before.apply(command)
        self._note("refused" if refused else "command", str(command), reason=refused)
        operator, replica = command.operator or "", command.number or 0
        if refused:
            return
        if command.name == "Start":
            for one in before.dead - self._conditions.dead:
                self._replicas[one] = _TestReplica(self._work[one[0]])
                self._network.started(*one)
        elif command.name == "Crash":
            self._die(operator, replica, "killed")
        elif command.name == "Freeze":
            self._do(self._network.frozen(operator, replica, self._now))
        elif command.name == "Unfreeze":
            self._network.thawed(operator, replica)
        elif command.name == "Status":
            for line in self.status():
                self._note("status", f"{line['operator']} {line['replica']} {line['state']}", **line)
        elif command.name == "Wait":
            self.settle()
            self.clock.advance(replica / 1000)

    def _begin(self) -> bool:
        """Begin a transaction, that of before a restart first; return whether there is anything to do."""
        plan = self._plan
        if plan is None:
            counts = Counter((one.operator, one.replica) for one in self._held)
            limits = going(self.configuration, self._conditions, counts)
            held = []
            for one in self.held:
                if limits.get((one.operator, one.replica), 0):
                    limits[one.operator, one.replica] -= 1
                    held.append(one)
            if not held and not self._feeds:
                return False
            lines = self._feeds.popleft() if self._feeds else []
            plan = self._plan = _Plan(self._txid + 1, self._conditions, lines, held)
        plan.state = {
            one.id: Seen(self._seen.setdefault(one.id, set()).intersection)
            if one.type == "UNIQ"
            else Counted(self._counted[one.id])
            for one in self.configuration.operators
        }
        self._carried = True
        self._do(self._network.begin(plan.txid, plan.conditions, plan.lines, plan.held, self._settled, self._now))
        return True

    def _settled(self, operator: str, rows: Sequence[Fields]) -> Sequence[Fields | None]:
        state = self._plan.state[operator] if self._plan else None
        return settle(self.configuration.operator(operator), state, rows)

    def _commit(self, plan: _Plan, outcome: Outcome) -> None:
        for operator, state in plan.state.items():
            if isinstance(state, Seen):
                self._seen[operator].update(state.added)
            else:
                self._counted[operator] = state.n
        released = {one.at for one in outcome.released}
        self._held = [one for one in self._held if one.at not in released] + outcome.held
        for operator, made in outcome.emitted.items():
            emitted = self._emitted[operator]
            emitted.ids += made.ids
            emitted.replicas += made.replicas
            emitted.fields += made.fields
            urls = self.configuration.operator(operator).addresses
            if self.configuration.logging == "full":
                for id, replica, row in zip(made.ids, made.replicas, made.fields, strict=True):
                    place = {"operator": operator, "replica": replica, "url": urls[replica]}
                    self._note("tuple", f"tuple {urls[replica]} {','.join(row)}", **place, id=id, fields=list(row))
        for one, counts in outcome.counts.items():
            self._processed[one] += counts.processed
        for lost in outcome.lost:
            self._note("lost", lost.item.id, operator=lost.operator, replica=lost.replica, id=lost.item.id)
        self.lost += len(outcome.lost)
        self.repeated += len(outcome.repeated)
        self._txid, self._plan, self._carried = plan.txid, None, False

    # -- the replicas ----------------------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Let each replica process one delivery after the other, side by side, until none has any."""
        moved = True
        while moved:
            moved, slept = False, 0
            for (operator, replica), one in sorted(self._replicas.items()):
                if one.inbox and one.silent_since is None:
                    moved, slept = True, max(slept, self._process(operator, replica, one))
            self.clock.advance(slept / 1000)

    def _process(self, operator: str, replica: int, one: _TestReplica) -> int:
        """Process a delivery; return the milliseconds that the replica has slept."""
        delivery, answers = one.inbox.popleft(), []
        if one.drops:
            one.drops = False
            return 0
        for item in list(delivery.items)[: one.fail_after]:
            try:
                answers.append((item.id, one.work(item.fields)))
            except Exception as error:
                self._do(self._network.abandon())
                self._carried = False
                raise TopologyFailed(failure(self.configuration.operator(operator), item.fields, error)) from error
        self._do(self._network.answered(operator, delivery.number, answers, self._now))
        if one.fail_after is not None:
            self._die(operator, replica, f"failed after {len(answers)} tuples of a delivery")
        return len(answers) * self._conditions.intervals.get(operator, 0)

    def _do(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            one = self._replicas[effect.operator, effect.replica]
            if isinstance(effect, Withdraw):
                one.inbox = deque(delivery for delivery in one.inbox if delivery.number != effect.number)
                continue
            one.inbox.append(effect)
            self._received[effect.operator, effect.replica] += len(effect.items)
            if effect.again:
                self._note("resend", f"{len(effect.items)} tuples", operator=effect.operator, replica=effect.replica)

    def _die(self, operator: str, replica: int, how: str) -> None:
        self._conditions = self._conditions.died(operator, replica)
        self._replicas[operator, replica] = _TestReplica(self._work[operator])
        self._note("crash", how, operator=operator, replica=replica)
        self._do(self._network.dead(operator, replica, self._now))

    # -- time, names, log ------------------------------------------------------------------------------------------

    def _due(self) -> float | None:
        silent = (one.silent_since + self._ping for one in self._replicas.values() if one.silent_since is not None)
        return min((one for one in (self._network.due, *silent) if one is not None), default=None)

    def _pass(self, seconds: float) -> None:
        self._now += seconds
        self.clock.advance(seconds)

    def _operator(self, name: str) -> Operator:
        found = {one.id.lower(): one for one in self.configuration.operators}
        if name.lower() not in found:
            names = [one.id for one in found.values()]
            raise InputError(f"NetworkTestDriver: operator {name!r} is not in the configuration{near(name, names)}")
        return found[name.lower()]

    def _replica(self, name: str, replica: int, live: bool = True) -> _TestReplica:
        operator = self._operator(name)
        if (operator.id, replica) not in self._replicas:
            msg = f"NetworkTestDriver: operator {operator.id} has replicas 0 to {operator.replicas - 1}, got {replica}"
            raise InputError(msg)
        if live and (operator.id, replica) in self._conditions.dead:
            msg = f"NetworkTestDriver: replica {replica} of {operator.id} is dead; `Start {operator.id}` makes it anew"
            raise InputError(msg)
        return self._replicas[operator.id, replica]

    def _note(self, event: str, text: str, **more: Any) -> None:
        at = datetime.fromtimestamp(self.clock.now() / 1_000_000, UTC).isoformat(timespec="microseconds")
        applying = {key: value for key, value in more.items() if value is not None}
        self.log.append({"at": at, "event": event, "text": text} | applying)


def _configuration(text: str | Path, directory: Path | str | None) -> Configuration:
    if isinstance(text, Path) or ("\n" not in text and Path(text).is_file()):
        path = Path(text)
        return load(path) if directory is None else parse(path.read_text(), str(path), directory)
    return parse(text, directory=directory)
