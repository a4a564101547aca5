"""A recording collector, and small drivers that run a spout as an engine does."""

import json
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from txstorm.api.attempt import TransactionAttempt
from txstorm.api.context import TaskContext
from txstorm.api.names import DEFAULT_STREAM
from txstorm.api.spout import NOT_READY, Spout
from txstorm.spouts.executors import planner, spout_task


class Recorder:
    """A collector that records emissions, both as tuples and in the form in which they were emitted."""

    def __init__(self) -> None:
        self.rows: list[tuple[Any, ...]] = []
        self.batches: list[Any] = []
        self.digests: dict[str, str] = {}
        self.errors: list[BaseException] = []
        self.direct: list[tuple[int, tuple[Any, ...]]] = []

    def emit(self, *values: Any, stream: str = DEFAULT_STREAM) -> None:
        self.rows.append(values)

    def emit_direct(self, task: int, *values: Any, stream: str = DEFAULT_STREAM) -> None:
        self.direct.append((task, values))

    def emit_batch(self, batch: Any, stream: str = DEFAULT_STREAM) -> None:
        batch.validate(full=True)
        self.batches.append(batch)
        table = pa.table(batch) if isinstance(batch, pa.RecordBatch) else batch
        self.rows.extend(tuple(row.values()) for row in table.to_pylist())

    def report_error(self, error: BaseException) -> None:
        self.errors.append(error)

    def digest(self, partition: str, digest: str) -> None:
        assert partition not in self.digests
        self.digests[partition] = digest

    def partition(self, number: int) -> None:
        pass

    def refuse(self, error: BaseException, record: object) -> None:
        raise error

    def origin(self, place: Callable[[int], Any]) -> None:
        pass

    def note(self, topic: str, rows: Callable[[], Any]) -> None:
        raise NotImplementedError

    emitDirect = emit_direct  # noqa: N815
    reportError = report_error  # noqa: N815


class Bench:
    """Plans and emits transactions of one spout, with a recorder per task and documents stored as in a ledger."""

    def __init__(self, spout: Spout, tasks: int = 1) -> None:
        self.spout = spout
        self.tasks = tasks
        self.planner = planner(spout, self.context(0))
        self.documents: dict[int, Any] = {}
        self.attempts = 0

    def load(self, committed: int) -> None:
        """Load what the spout keeps, with the transactions up to `committed` as committed; none is removed."""
        rows: dict[Any, Any] = {}
        for txid, document in sorted(self.documents.items()):
            rows.update(self.spout.kept_rows.rows(document["meta"]) if txid <= committed else {})
        listed = [{"file": name, **row} for name, row in rows.items() if row is not None]
        planned = {txid: document for txid, document in self.documents.items() if txid >= committed}
        self.planner.load_kept(lambda source: pa.Table.from_pylist(listed) if listed else None, lambda: planned)

    def context(self, task: int) -> TaskContext:
        return TaskContext(topology="t", component="lines", task=task, parallelism=self.tasks)

    def plan(self, txid: int, *, replay: bool = False) -> Any:
        document = self.planner.plan(txid, self.documents.get(txid - 1), replay=replay)
        if document is not NOT_READY:
            self.documents[txid] = json.loads(json.dumps(document))
        return document

    def emit(self, txid: int, *, wrap: Callable[[Recorder], Any] = lambda recorder: recorder) -> list[Recorder]:
        """Emit one txid as a job does, each task from its own shipped copy of the spout; complete the document."""
        self.attempts += 1
        previous = self.documents.get(txid - 1) or {}
        recorders, parts = [Recorder() for _ in range(self.tasks)], {}
        for task, recorder in enumerate(recorders):
            context = self.context(task)
            shipped = pickle.loads(pickle.dumps(self.spout)) if self.ships else self.spout
            running = spout_task(shipped, context)
            context.payload = self.planner.payload(self.documents[txid])
            carried = dict(previous.get("parts") or {})
            attempt = TransactionAttempt(txid, self.attempts)
            parts.update(running.run(attempt, self.documents[txid], carried, wrap(recorder)))
            running.close()
        self.documents[txid] = json.loads(json.dumps(self.planner.finish(self.documents[txid], parts)))
        return recorders

    ships = True

    def rows(self, txid: int) -> list[tuple[Any, ...]]:
        """Return all rows of `txid`, task by task; plans the txid first if it is not planned yet."""
        if txid not in self.documents:
            assert self.plan(txid) is not NOT_READY, f"txid {txid} is not ready"
        return [row for recorder in self.emit(txid) for row in recorder.rows]

    def drain(self, limit: int = 1000) -> list[list[tuple[Any, ...]]]:
        """Emit txids until the spout is not ready, at most `limit`; return the rows of each."""
        found: list[list[tuple[Any, ...]]] = []
        first = max(self.documents, default=0) + 1
        for txid in range(first, first + limit):
            if self.plan(txid) is NOT_READY:
                return found
            found.append(self.rows(txid))
        raise AssertionError(f"still ready after {limit} transactions")


def flat(parts: Sequence[Sequence[Any]]) -> list[Any]:
    return [row for part in parts for row in part]
