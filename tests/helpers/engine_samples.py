"""Small topologies and packs for tests that run an engine without a driver."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from watched import Gathering

from txstorm import BasicBolt, FailedException, Topology, TransactionalSpout, TransactionalTopologyBuilder
from txstorm.api.attempt import TransactionAttempt
from txstorm.api.spout import Emitter, SpoutCoordinator
from txstorm.engine.local import LocalEngine
from txstorm.engine.port import Pack, Processed, TxidInput
from txstorm.engine.program import Program, program_of
from txstorm.plan.stages import compile_plan

called: list[tuple[Any, ...]] = []
"""Calls of user code in this process; cleared by the fixture that runs an engine."""
gates: dict[str, threading.Event] = {}
"""Events for which bolts on other threads wait."""


class Rows(TransactionalSpout):
    """A spout that emits the numbers listed in its metadata, shared out among its tasks."""

    fields = ("n",)

    def coordinator(self, context):
        return SpoutCoordinator()

    def emitter(self, context):
        return RowsEmitter(context)


class RowsEmitter(Emitter):
    def __init__(self, context):
        self.context = context
        called.append(("emitter", context.task))

    def emit_batch(self, attempt, metadata, collector):
        called.append(("emit", attempt.txid, self.context.task))
        mine = [n for n in metadata if n % self.context.parallelism == self.context.task]
        for n in mine:
            collector.emit(n)
        collector.digest(str(self.context.task), f"digest of {mine}")

    def cleanup_before(self, txid):
        called.append(("cleanup", txid))

    def close(self):
        called.append(("closed", self.context.task))


class Step(BasicBolt):
    """A bolt that passes numbers on, except: 13 fails the batch, 17 raises an error, 19 is reported, 23 waits."""

    fields = ("n",)

    def prepare(self, context):
        self.context = context

    def execute(self, tuple, collector):
        n = tuple["n"]
        called.append((self.context.component, tuple.attempt.txid, n))
        if n == 13:
            raise FailedException("unlucky")
        if n == 17:
            raise ValueError("odd")
        if n == 19:
            collector.report_error(ValueError("seen"))
        if n == 23:
            gates["entered"].set()
            gates["leave"].wait(60)
        collector.emit(n)


class Collect(Gathering):
    """A batch bolt that emits the numbers of its batch, sorted, from `finish_batch`."""

    fields = ("n",)

    def finish_batch(self):
        called.append((self.context.component, self.context.attempt.txid, len(self.taken)))
        for n in sorted(self.taken):
            self.collector.emit(n)


def chain(**settings: Any) -> Topology:
    """Build numbers(2) → a(2) → exchange → b(3) → collect(3) → exchange → keep, a committer; (n) is the parallelism."""
    builder = TransactionalTopologyBuilder("chain", "numbers", Rows(), 2)
    builder.set_bolt("a", Step(), 2).local_or_shuffle_grouping("numbers")
    builder.set_bolt("b", Step(), 3).fields_grouping("a", ["n"])
    builder.set_bolt("collect", Collect(), 3).local_or_shuffle_grouping("b")
    builder.set_committer_bolt("keep", Collect(), 1).global_grouping("collect")
    builder.set_settings(settings)
    return builder.build_topology()


def program(topology: Topology, spill_dir: Path | None = None) -> Program:
    return program_of(compile_plan(topology), str(spill_dir) if spill_dir else None)


def pack(*batches: Sequence[int], first: int = 1, committed: int = 0, attempt: int = 100) -> Pack:
    """Build a pack of consecutive txids, one for each of `batches`, which emit its numbers."""
    inputs = tuple(
        TxidInput(TransactionAttempt(txid, attempt + txid), {"meta": list(numbers)}, 1_000_000 * txid)
        for txid, numbers in enumerate(batches, first)
    )
    return Pack(inputs, committed=committed)


def processed(topology: Topology, given: Pack, spill_dir: Path | None = None) -> list[Processed]:
    engine = LocalEngine()
    engine.start(program(topology, spill_dir))
    try:
        return engine.submit(given).result(timeout=60)
    finally:
        engine.close()
