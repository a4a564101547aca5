"""Fakes of a source, of plans, of an engine and a clock; a flow of transactions over them."""

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

from txstorm.api.spout import NOT_READY
from txstorm.engine.port import Pack, Processed, TxidInput
from txstorm.runtime.batches.flow import Flow, FlowOptions
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


class Plans:
    """Fake plans: whatever a test says, and data otherwise."""

    def __init__(self, source: Source | None = None) -> None:
        self.planner, self.micros = source or Source(), 0
        self.documents: dict[int, Any] = {}
        self.kinds: dict[int, Any] = {}
        self.plan_system, self.document = self.kinds.__setitem__, self.documents.get

    def kind(self, txid: int) -> Any:
        return self.kinds.get(txid, "data")

    def waiting(self, txid: int) -> tuple[str, ...]:
        return ()

    def open(self, currtx: int) -> tuple[int, ...]:
        return ()

    def now(self) -> int:
        return self.micros

    def save(self) -> None:
        pass

    def txid_input(self, attempt: Any, divert: Any) -> TxidInput:
        return TxidInput(attempt, {}, 0, divert=divert)

    def carried(self, txid: int) -> dict[str, Any]:
        return {}

    def committed(self, last: int, waiting: Any) -> None:
        pass


class PaperEngine:
    """A fake engine that records the packs it receives; the test completes them."""

    name = "paper"

    def __init__(self) -> None:
        self.packs: list[Pack] = []
        self.futures: list[Future[list[Processed]]] = []
        self.cancelled: list[Future[list[Processed]]] = []

    def start(self, program: Any) -> None:
        pass

    def submit(self, pack: Pack) -> Future[list[Processed]]:
        self.packs.append(pack)
        self.futures.append(Future())
        return self.futures[-1]

    def cancel(self, future: Future[list[Processed]]) -> None:
        self.cancelled.append(future)

    def describe(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        pass


def flow_of(planning: Any, engine: Any = None, **options: Any) -> Flow:
    """Return a flow over `planning`, whose txids have not failed; `options`: see `FlowOptions`."""
    program: Any = SimpleNamespace(spout="spout", frame_sinks=(), work_of=lambda busy: sum(busy.values()))
    retry: Any = SimpleNamespace(divert=lambda txid: (), failure=lambda txid: Failure())
    clock: Any = SimpleNamespace(holds=lambda: False)
    return Flow(
        planning, engine or PaperEngine(), program, retry, clock, FlowOptions(**{"monotonic": Clock(), **options})
    )
