"""Fakes of a source, an engine and a clock; a flow of transactions over them."""

from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from txstorm.api.spout import NOT_READY
from txstorm.books.books import Books
from txstorm.engine.port import Pack, Processed
from txstorm.ledger.memory import MemoryLedger
from txstorm.runtime.batches.flow import Flow, FlowOptions
from txstorm.runtime.batches.planning import Planning
from txstorm.runtime.failures import Failure
from txstorm.spouts.port import SpoutPlanner


class Clock:
    """A fake clock, in seconds, which only the test advances."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Source(SpoutPlanner):
    """A fake spout planner of `held` items, one for each transaction; its documents count the items taken."""

    def __init__(self, held: int = 0, *, opaque: bool = False, tells: bool = True, parts: bool = False) -> None:
        self.held, self.opaque, self.tells, self.task_planned = held, opaque, tells, parts
        self.asked: list[tuple[int, Any, bool]] = []

    def plan(self, txid: int, previous: Any, *, replay: bool = False, upto: Any = None) -> Any:
        self.asked.append((txid, previous, replay))
        taken = previous["taken"] if previous else 0
        if taken >= self.held:
            return NOT_READY
        return {"taken": taken + 1, "parts": None} if self.task_planned else {"taken": taken + 1}

    def skip(self, previous: Any) -> Any:
        return previous or {"taken": 0}

    def payload(self, document: Any) -> Any:
        return ["payload", document["taken"]]

    def latest(self) -> Any:
        return self.held if self.tells else None

    def reached(self, document: Any, mark: Any) -> bool:
        return (document["taken"] if document else 0) >= mark

    def finish(self, document: Any, parts: dict[str, Any]) -> Any:
        return {**document, "parts": parts}

    def carried(self, document: Any) -> dict[str, Any]:
        return dict(document.get("parts") or {})

    def close(self) -> None:
        pass


class PaperEngine:
    """A fake engine that records the packs it receives; the test completes them."""

    def __init__(self) -> None:
        self.packs: list[Pack] = []
        self.futures: list[Future[list[Processed]]] = []
        self.cancelled: list[Future[list[Processed]]] = []

    def submit(self, pack: Pack) -> Future[list[Processed]]:
        self.packs.append(pack)
        self.futures.append(Future())
        return self.futures[-1]

    def cancel(self, future: Future[list[Processed]]) -> None:
        self.cancelled.append(future)


def flow_of(source: Source | Planning, engine: Any = None, now: Any = lambda: 0, **options: Any) -> Flow:
    """Return a flow over a source, or plans, whose txids have not failed; `options`: see `FlowOptions`."""
    if isinstance(source, Source):
        books = Books(MemoryLedger(), Path())
        books.raise_epoch()
        source = Planning(books, source, now)
    program: Any = SimpleNamespace(spout="spout", frame_sinks=(), work_of=lambda busy: sum(busy.values()))
    retry: Any = SimpleNamespace(divert=lambda txid: (), failure=lambda txid: Failure())
    clock: Any = SimpleNamespace(holds=lambda: False)
    limits = FlowOptions(**{"monotonic": Clock(), **options})
    return Flow(source, engine or PaperEngine(), program, retry, clock, limits)
