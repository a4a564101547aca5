"""Test bench for the coordinator's state machine: plans are answered from a variable, as in Storm's own test."""

from dataclasses import replace
from typing import Any

from txstorm.coordinator.commands import Command, Commit, Discard, Forget, Plan, Process
from txstorm.coordinator.events import Committed, Event, Failed, NotReady, Opened, Planned, Processed, Wake
from txstorm.coordinator.machine import COMMITTING, Config, initial, step

ALWAYS = "always"


class Bench:
    """The coordinator's state machine on a fake ledger; `value` is the next txid's metadata, None if not ready."""

    def __init__(
        self, max_pending: int = 4, max_group: int = 1, opaque: bool = False, currtx: int = 1, stored: Any = None
    ):
        self.config = Config(max_pending, max_group, opaque)
        self.metas: dict[int, Any] = dict(stored or {})
        self.value: Any = ALWAYS
        self.next_attempt = 100
        self.asked: list[int] = []  # txids for which is_ready was called
        self.initialized: list[tuple[int, Any]] = []  # (txid, metadata of the previous txid)
        self.attempts: dict[int, int] = {}  # txid → its current attempt
        self.used: list[int] = []
        self.forgotten = 0
        self.log: list[tuple[Event, tuple[Command, ...]]] = []
        self.state = initial(self.config)
        self.send(Opened(currtx, tuple(sorted(txid for txid in self.metas if txid >= currtx))))

    def send(self, event: Event) -> list[str]:
        """Deliver `event`, answer the resulting plans, and return the emitted batches and commits in Storm notation."""
        emitted: list[str] = []
        events = [event]
        self.sent = len(self.log)
        while events:
            one = events.pop(0)
            self.state, commands = step(self.state, one)
            self.log.append((one, commands))
            for command in commands:
                emitted += self.note(command)
                if isinstance(command, Plan):
                    events.append(self.answer(command))
        return emitted

    def note(self, command: Command) -> list[str]:
        match command:
            case Process(txid, attempt):
                assert self.attempts.get(txid) == attempt, f"{command} is not the attempt that was planned"
                self.used.append(attempt)
                return [f"batch {txid}({self.metas[txid]})"]
            case Commit(txids, attempts):
                assert attempts == tuple(self.attempts[txid] for txid in txids)
                return ["commit " + "+".join(map(str, txids))]
            case Forget(before):
                self.forgotten = before
                self.metas = {txid: meta for txid, meta in self.metas.items() if txid >= before}
        return []

    def answer(self, plan: Plan) -> Event:
        if not plan.replay:
            self.asked.append(plan.txid)
            if self.value is None:
                return NotReady(plan.txid)
            self.initialized.append((plan.txid, self.metas.get(plan.txid - 1)))
            self.metas[plan.txid] = self.value
        elif self.config.opaque:
            self.metas[plan.txid] = self.value
        self.next_attempt += 1
        self.attempts[plan.txid] = self.next_attempt
        return Planned(plan.txid, self.next_attempt)

    def wake(self) -> list[str]:
        return self.send(Wake())

    def ack(self, txid: int, attempt: int | None = None) -> list[str]:
        """Acknowledge the outstanding tuple tree of `txid` in either phase, like Storm's ack; return the emissions."""
        attempt = attempt or self.attempts[txid]
        status = self.state.active.get(txid, (0, None))[1]
        return self.send(Committed(txid, attempt) if status is COMMITTING else Processed(txid, attempt))

    def fail(self, txid: int, attempt: int | None = None, resume: bool = True) -> list[str]:
        return self.send(Failed(txid, attempt or self.attempts[txid], resume))

    def ignores(self, event: Event) -> bool:
        """Return whether `event` has no effect."""
        before = self.state
        after, commands = step(before, event)
        return after == before and commands == ()

    def commands(self) -> list[Command]:
        """Return the commands caused by the last event sent, including those that follow answered plans."""
        return [one for _, commands in self.log[self.sent :] for one in commands]

    def discarded(self) -> list[int]:
        """Return all txids discarded so far, in order."""
        return [txid for _, commands in self.log for one in commands if isinstance(one, Discard) for txid in one.txids]

    def restart(self) -> "Bench":
        """Return a new coordinator on the same ledger, as after a crash."""
        metas = {} if self.config.opaque else self.metas
        fresh = Bench(currtx=self.state.currtx, stored=metas)
        fresh.config = replace(self.config)
        fresh.state = fresh.state._replace(config=self.config)
        fresh.next_attempt = self.next_attempt
        fresh.value = self.value
        return fresh


def started(count: int, **kwargs: Any) -> Bench:
    """Return a bench with txids 1 to `count` in their processing phase."""
    bench = Bench(max_pending=count, **kwargs)
    bench.wake()
    return bench
