"""Simulated world around the state machine, driven by one seed: a source, a ledger, and an unreliable runtime.

The runtime delays answers, fails and crashes. The source is the sequence of integers, and a batch is a range of it.
Exactly once means that the committed ranges are contiguous. All random choices derive from the seed, so a seed
identifies a schedule.
"""

from collections.abc import Callable
from random import Random

from txstorm.coordinator import machine
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
from txstorm.errors import TxstormError

Batch = tuple[int, int]


class Violation(AssertionError):
    """Raised when an invariant is violated."""


def demand(holds: bool, what: str, *values: object) -> None:
    if not holds:
        raise Violation(what.format(*values))


class Ledger:
    """A fake ledger: the durable state, which survives a crash."""

    def __init__(self) -> None:
        self.currtx = 1
        self.metas: dict[int, Batch] = {}
        self.committed: list[Batch] = []

    def end_of(self, txid: int) -> int:
        if txid == 0:
            return 0
        demand(txid in self.metas, "metadata of {} is gone, {} cannot be planned", txid, txid + 1)
        return self.metas[txid][1]

    def commit(self, txid: int, batch: Batch) -> None:
        demand(txid == self.currtx, "committed {}, the next one is {}", txid, self.currtx)
        end = self.committed[-1][1] if self.committed else 0
        demand(batch[0] == end, "{} holds {}, but the one before ends at {}: lost or twice", txid, batch, end)
        self.committed.append(batch)
        self.currtx += 1


class World:
    """The simulated world of one schedule: source, ledger, runtime and the state machine under test."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        draw = self.random.random
        opaque = draw() < 0.6
        self.config = machine.Config(self.random.randint(1, 6), self.random.randint(1, 4), opaque)
        self.faults = self.random.choice((0.02, 0.1, 0.3))
        self.late_plans = self.random.choice((0.0, 0.0, 0.3))
        self.available = self.random.randint(0, 12)
        self.ledger = Ledger()
        self.initialized: set[int] = set()
        self.attempt = 0
        self.dead: list[tuple[int, int]] = []
        self.trace: list[tuple[Event, tuple[Command, ...]]] = []
        self.open()

    # --- life cycle of a process ---

    def open(self) -> None:
        """Start the coordinator, for the first time or after a crash, with only the ledger as its state."""
        if self.config.opaque:
            self.ledger.metas = {txid: meta for txid, meta in self.ledger.metas.items() if txid < self.ledger.currtx}
        self.batches: dict[int, Batch] = {}  # attempt → its planned batch
        self.live: dict[int, int] = {}  # txid → attempt
        self.processed: set[int] = set()  # attempts
        self.seen: set[int] = set()  # attempts that were sent to processing
        self.group: tuple[int, ...] = ()
        self.plan: Plan | None = None
        self.started = set() if self.config.opaque else set(self.ledger.metas)
        self.quiet = False  # no new plans expected
        self.stop: Stopping | None = None
        self.state = machine.initial(self.config)
        stored = tuple(sorted(txid for txid in self.ledger.metas if txid >= self.ledger.currtx))
        self.send(Opened(self.ledger.currtx, stored))
        self.send(Wake())

    def send(self, event: Event) -> tuple[Command, ...]:
        """Deliver one event, execute the resulting commands, and answer a plan unless its answer is delayed."""
        self.state, commands = machine.step(self.state, event)
        self.trace.append((event, commands))
        for command in commands:
            self.carry_out(command)
        self.check()
        if self.plan and not (self.late_plans and self.random.random() < self.late_plans):
            self.answer()
        return commands

    def carry_out(self, command: Command) -> None:
        match command:
            case Plan():
                self.on_plan(command)
            case Process():
                self.on_process(command)
            case Commit():
                self.on_commit(command)
            case Discard():
                self.on_discard(command)
            case Forget(before):
                demand(before < self.ledger.currtx, "told to forget below {}, currtx is {}", before, self.ledger.currtx)
                for txid in [txid for txid in self.ledger.metas if txid < before]:
                    del self.ledger.metas[txid]

    def on_plan(self, plan: Plan) -> None:
        demand(self.plan is None, "{} while {} is unanswered", plan, self.plan)
        first = self.ledger.currtx
        demand(first <= plan.txid < first + self.config.max_pending, "{} is outside the window from {}", plan, first)
        demand(plan.replay == (plan.txid in self.started), "{}, started are {}", plan, self.started)
        demand(plan.replay or not self.quiet, "{} though nothing new may start", plan)
        demand(not (self.stop and not self.stop.drain), "{} after stopping", plan)
        self.plan = plan

    def on_process(self, command: Process) -> None:
        txid, attempt = command.txid, command.attempt_id
        demand(attempt not in self.seen, "{} twice", command)
        demand(txid not in self.live, "{}, but {} was not discarded", command, self.live.get(txid))
        start = self.batches[attempt][0]
        before = self.live.get(txid - 1)
        end = self.batches[before][1] if before else self.ledger.end_of(txid - 1)
        demand(start == end, "{} begins at {}, the batch before it ends at {}", command, start, end)
        self.seen.add(attempt)
        self.live[txid] = attempt

    def on_commit(self, command: Commit) -> None:
        demand(not self.group, "{} while {} is committing", command, self.group)
        first = self.ledger.currtx
        demand(command.txids == tuple(range(first, first + len(command.txids))), "{}, currtx is {}", command, first)
        demand(1 <= len(command.txids) <= self.config.max_group, "{} is longer than {}", command, self.config.max_group)
        for txid, attempt in zip(command.txids, command.attempt_ids, strict=True):
            demand(
                self.live.get(txid) == attempt, "{}: the live attempt of {} is {}", command, txid, self.live.get(txid)
            )
            demand(attempt in self.processed, "{}: {} is not processed", command, txid)
        demand(not (self.stop and not self.stop.drain), "{} after stopping", command)
        self.group = command.txids

    def on_discard(self, command: Discard) -> None:
        for txid, attempt in zip(command.txids, command.attempt_ids, strict=True):
            demand((txid, attempt) not in self.dead, "{} of an attempt that is dead already", command)
            self.dead.append((txid, attempt))
            if self.live.get(txid) == attempt:
                del self.live[txid]
        self.group = tuple(txid for txid in self.group if txid in self.live)

    def check(self) -> None:
        state = self.state
        demand(state.currtx == self.ledger.currtx, "currtx is {}, the ledger says {}", state.currtx, self.ledger.currtx)
        known = {txid: attempt for txid, (attempt, _) in state.active.items()}
        demand(known == self.live, "active {}, live {}", known, self.live)
        demand(len(known) <= self.config.max_pending, "{} active", len(known))
        demand(state.committing_txids == self.group, "committing {}, told {}", state.committing_txids, self.group)

    def answer(self) -> None:
        """Answer the pending plan from the source and the ledger, or report that it is not ready."""
        plan, self.plan = self.plan, None
        assert plan is not None
        replayed = plan.replay and not self.config.opaque
        if self.random.random() < self.faults or (not plan.replay and self.ledger_end(plan.txid) >= self.available):
            self.send(NotReady(plan.txid))
            return
        if not replayed:
            start = self.ledger_end(plan.txid)
            end = min(self.available, start + self.random.randint(1, 3))
            self.ledger.metas[plan.txid] = (start, max(start, end))
            demand(self.config.opaque or plan.txid not in self.initialized, "{} is initialized twice", plan.txid)
            self.initialized.add(plan.txid)
            self.started.add(plan.txid)
        self.attempt += 1
        self.batches[self.attempt] = self.ledger.metas[plan.txid]
        self.send(Planned(plan.txid, self.attempt))

    def ledger_end(self, txid: int) -> int:
        return self.ledger.end_of(txid - 1)

    # --- random steps ---

    def turn(self) -> None:
        """Take one random step, a fault or progress; if the coordinator has stopped, restart it instead."""
        if self.state.stopped:
            self.open()
            return
        if self.random.random() < self.faults:
            self.random.choice(FAULTS)(self)
        else:
            self.random.choice(PROGRESS)(self)

    def wake(self) -> None:
        self.send(Wake())

    def grow(self) -> None:
        self.available += self.random.randint(0, 4)
        self.send(Wake())

    def plan_answered(self) -> None:
        if self.plan:
            self.answer()

    def process(self) -> None:
        waiting = [txid for txid, attempt in self.live.items() if attempt not in self.processed]
        if waiting:
            txid = self.random.choice(waiting)
            self.processed.add(self.live[txid])
            self.send(Processed(txid, self.live[txid]))

    def commit(self) -> None:
        if self.group:
            self.decide(len(self.group))

    def decide(self, count: int) -> None:
        """Decide the first `count` txids of the committing group, and report them as committed."""
        group, self.group = self.group, ()
        for txid in group[:count]:
            attempt = self.live.pop(txid)
            self.ledger.commit(txid, self.batches[attempt])
        self.send(Committed(group[count - 1], attempt))

    def resume(self) -> None:
        if self.state.holding:
            self.send(Resume(self.random.choice(self.state.holding)))

    def fail(self) -> None:
        if self.live:
            txid = self.random.choice(list(self.live))
            self.send(Failed(txid, self.live[txid], self.random.random() < 0.7))

    def fail_in_commit(self) -> None:
        """Fail a random txid of the committing group, after deciding the txids before it."""
        if not self.group:
            return
        place = self.random.randrange(len(self.group))
        txid = self.group[place]
        attempt = self.live[txid]
        if place:
            self.decide(place)
        if self.live.get(txid) == attempt:
            self.send(Failed(txid, attempt, self.random.random() < 0.7))

    def decide_less(self) -> None:
        """Decide only a prefix of the group, without a failure."""
        if len(self.group) > 1:
            self.decide(self.random.randrange(1, len(self.group)))
            self.send(Wake())

    def stale(self) -> None:
        """Deliver stale and duplicate responses, for superseded or finished attempts: they must have no effect."""
        events: list[Event] = []
        if self.dead:
            txid, attempt = self.random.choice(self.dead)
            events = [Processed(txid, attempt), Failed(txid, attempt), Failed(txid, attempt, False)]
            events.append(Committed(txid, attempt))
        done = self.processed & set(self.live.values())
        events += [Processed(txid, attempt) for txid, attempt in self.live.items() if attempt in done]
        for event in events:
            self.trace.append((event, ()))
            demand(machine.step(self.state, event) == (self.state, ()), "{} is stale, but not without effect", event)

    def crash(self) -> None:
        """Crash and restart the process; a decision in progress becomes durable completely, partly, or not at all."""
        if self.group and self.random.random() < 0.5:
            for txid in self.group[: self.random.randint(1, len(self.group))]:
                self.ledger.commit(txid, self.batches[self.live[txid]])
        self.dead = []
        self.open()

    def toggle(self) -> None:
        if not self.stop:
            self.quiet = not self.quiet
            self.send(Deactivated() if self.quiet else Activated())

    def stopping(self) -> None:
        self.quiet = True
        if not (self.stop and not self.stop.drain):
            self.stop = Stopping(self.random.random() < 0.5)
        self.send(self.stop)

    # --- the end of a schedule ---

    def heal(self) -> None:
        """Stop all faults, and demand that the whole source is committed within a bounded number of turns."""
        self.faults, self.late_plans = 0.0, 0.0
        if self.stop:
            self.finish(lambda: self.state.stopped, "stopping")
            drained = not self.stop.drain or all(txid < self.ledger.currtx for txid in self.started)
            demand(drained, "drained up to {}, started {}", self.ledger.currtx, self.started)
            self.open()
        if self.quiet:
            self.toggle()
        self.finish(
            lambda: bool(self.ledger.committed) and self.ledger.committed[-1][1] == self.available, "committing"
        )
        demand(self.ledger.committed[0][0] == 0, "the first batch does not begin at the first number")

    def finish(self, done: Callable[[], bool], what: str) -> None:
        self.available = max(1, self.available)
        for _ in range(20 + 4 * self.available):
            if done():
                return
            for action in (World.plan_answered, World.resume, World.wake, World.process, World.commit):
                action(self)
        raise Violation(f"{what} does not end: {self.state}")


PROGRESS = (World.wake, World.grow, World.plan_answered, World.process, World.process, World.commit, World.resume)
FAULTS = (
    World.fail,
    World.fail_in_commit,
    World.fail_in_commit,
    World.decide_less,
    World.stale,
    World.stale,
    World.crash,
    World.toggle,
    World.stopping,
)


def run(seed: int, turns: int = 30) -> World:
    """Run the schedule of `seed` and return its world; any error is raised as a `Violation` that names the seed."""
    try:
        world = World(seed)
        for _ in range(turns):
            world.turn()
        world.heal()
    except (Violation, TxstormError, LookupError) as error:
        raise Violation(f"seed {seed}: {error}") from error
    return world
