"""Simulated ledger, whose entries are durable but whose responses may be lost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from txstorm.errors import FencedError, HeldError, TxstormError
from txstorm.ledger.port import Entry, Op, name_order, outcome
from txstorm.simulation.schedule import FAILED, LOST

if TYPE_CHECKING:
    from txstorm.simulation.process.process import Process
    from txstorm.simulation.world import World


HOST = "simulated"
"""The machine of all processes."""


class Injected(TxstormError):
    """A store of the simulated world does not respond: an injected fault."""


class Values:
    """Codec of the simulated ledger, which keeps values as objects; their JSON form is tested elsewhere."""

    def __init__(self) -> None:
        self._values: dict[bytes, Any] = {}

    def encode(self, value: Any, what: str, epoch: int) -> bytes:
        """Store the value and return its number as bytes."""
        data = b"%d" % len(self._values)
        self._values[data] = value
        return data

    def decode(self, data: bytes, what: str) -> Any:
        """Return the value that `data` represents."""
        return self._values[data]

    def sweep(self, kept: Iterable[bytes], epoch: int) -> None:
        """Do nothing: there are no files."""


class Entries:
    """Durable content of the ledger: entries by path, and by parent and name; and the lease holder."""

    def __init__(self) -> None:
        self.at: dict[str, Entry] = {}
        self.below: dict[str, dict[str, Entry]] = {}
        self.holder: SimLedger | None = None
        self._unsynced: list[dict[str, Entry | None]] = []  # of the commits since the last durable one: what was before

    def commit(self, changed: Mapping[str, Entry | None], *, durable: bool) -> None:
        """Apply a commit; a power cut may undo one that is not `durable` until a durable one follows."""
        if durable:
            self._unsynced.clear()
        else:
            self._unsynced.append({path: self.at.get(path) for path in changed})
        self.update(changed)

    def lose(self, below: Callable[[int], int]) -> int:
        """Undo some of the last commits, as a power cut may; return how many."""
        lost = below(len(self._unsynced) + 1) if self._unsynced else 0
        for _ in range(lost):
            self.update(self._unsynced.pop())
        self._unsynced.clear()
        return lost

    def update(self, changed: Mapping[str, Entry | None]) -> None:
        """Put or remove entries: path → new entry, None to remove it."""
        for path, entry in changed.items():
            above, _, name = path.rpartition("/")
            names = self.below.get(above)
            if names is None:
                names = self.below[above] = {}
            if entry is None:
                names.pop(name, None)
                self.at.pop(path, None)
            else:
                names[name] = self.at[path] = entry

    def paths(self, path: str) -> list[str]:
        """Return the entries directly below `path`, by name."""
        return [f"{path}/{name}" for name in self.below.get(path, ())]

    def names(self, path: str) -> list[str]:
        """Return the names directly below `path`."""
        found = self.below.get(path, ())
        return sorted(found, key=name_order) if len(found) > 1 else list(found)


class SimLedger:
    """Ledger handle of one process on the `Entries` of its world."""

    def __init__(self, world: World, process: Process) -> None:
        self._world = world
        self._process = self.process = process
        self._entries = world.entries
        self._at = world.entries.at
        self._notices = world.schedule.notices

    def get(self, path: str) -> Entry | None:
        """Return the entry at `path`; None if there is none."""
        self._world.reads(self._process, "ledger get", path.partition("/answers/")[0])  # their ids are random
        if (lane := self._process.scheduler.current) is not None:
            lane.asked = path
        return self._at.get(path)

    def children(self, path: str) -> list[str]:
        """Return the names directly below `path`."""
        self._world.reads(self._process, "ledger children", path)
        return self._entries.names(path)

    def scan(self, path: str) -> dict[str, Entry]:
        """Return the entries directly below `path`, by name."""
        self._world.reads(self._process, "ledger scan", path)
        found = self._entries.below.get(path, {})
        return {name: found[name] for name in self._entries.names(path)} if len(found) > 1 else found.copy()

    def commit(self, ops: Sequence[Op], *, durable: bool = True) -> None:
        """Apply `ops` atomically; the process may die before or after that, or receive no response."""
        if not ops:
            return
        kind = self._world.passes(self._process, "ledger commit", ops[-1].path.partition("/answers/")[0])
        self.check_lease()
        if kind == FAILED:
            raise self._process.injected(Injected("the ledger refused the commit"))
        at = self._at
        changed: dict[str, Entry | None] = {}
        for op in ops:
            path = op.path
            there = changed[path] if path in changed else at.get(path)
            after = outcome(op, there)
            if after is not there:
                changed[path] = after
        with self._world.judging():
            self._world.judge.before_ledger(self._process, changed, durable=durable)
        self._entries.commit(changed, durable=durable)
        self._process.has_written(kind)
        if kind == LOST:
            raise self._process.injected(Injected("the ledger's answer is lost"))

    def acquire(self, owner: str) -> None:
        """Acquire the lease."""
        self._world.reads(self._process, "ledger acquire", owner)
        if self._entries.holder is not None:
            raise HeldError(f"another process has the lease, {owner} cannot")
        self._entries.holder, self._process.waits = self, False
        self._process.before = self._world.fences()

    def check_lease(self) -> None:
        """Raise `FencedError` if the lease is lost and the process can already notice it."""
        if self._notices and self._entries.holder is not self:
            raise FencedError("the lease is lost")

    def wait_free(self, seconds: float) -> bool:
        """Wait until the lease is free; return whether it is."""
        if self._entries.holder is not None:
            self._process.lanes.sleep(seconds)
        return self._entries.holder is None

    def release(self) -> None:
        """Release the lease."""
        if self._entries.holder is self:
            self._entries.holder = None

    def holder(self) -> str | None:
        """Return the holder of the lease."""
        self._world.reads(self._process, "ledger holder", "")
        holder = self._entries.holder
        return None if holder is None else f"pid {holder.process} on {HOST}"

    def close(self) -> None:
        """Release the lease, when the process has ended its work."""
        self._process.led = self._world.leads(self._process)
        self.release()
