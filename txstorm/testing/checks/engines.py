"""Checks for a user-defined engine: every topology must emit the same tuples, in the same order, as locally."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import TimeoutError as FutureTimeout
from pathlib import Path
from typing import Any

from txstorm.api.attempt import TransactionAttempt
from txstorm.api.bolt import BatchBolt
from txstorm.api.context import TaskContext
from txstorm.api.names import near
from txstorm.api.output import Collector
from txstorm.api.tuples import Tuple
from txstorm.engine.local import LocalEngine
from txstorm.engine.port import Engine, Pack, Processed, TxidInput
from txstorm.engine.program import program_of
from txstorm.errors import FailedException, InputError
from txstorm.plan.stages import compile_plan
from txstorm.spouts.memory import MemoryTransactionalSpout
from txstorm.testing.checks.network_rules import check_seen
from txstorm.testing.checks.networks import NETWORKS, SIZES, build, observe
from txstorm.testing.checks.rules import CheckFailed, checking, expect
from txstorm.topology.builder import TransactionalTopologyBuilder
from txstorm.topology.graph import Topology

PACKED: dict[str, Any] = {"max_spout_pending": 8, "max_jobs": 2}
TIMEOUT = 300.0
FAILS_AT = 2


def check_engine(
    make_engine: Callable[[], Engine], *, networks: Iterable[str] | None = None, timeout: float = TIMEOUT
) -> None:
    """Raise `CheckFailed` unless the engine processes batches as specified in `txstorm.engine.port.Engine`.

    Runs topologies with every kind of component, grouping and stream, several packs at a time, and compares each tuple
    with the rules of the groupings, and with the local engine on one transaction at a time. Then it runs packs with a
    bolt that fails.

    Args:
        make_engine: creates an engine, not started yet.
        networks: names from `txstorm.testing.checks.networks.NETWORKS`; None: all.
        timeout: seconds after which a run or pack is considered to hang.

    Raises:
        CheckFailed: a rule is broken.
        InputError: a network does not exist.
    """
    for name in NETWORKS if networks is None else networks:
        if name not in NETWORKS:
            raise InputError(f"network {name!r}: expected one of NETWORKS{near(name, list(NETWORKS))}")
        with checking(f"engine: network {name!r}"):
            check_network(NETWORKS[name], make_engine, timeout=timeout)
    with checking("engine: a batch that fails"):
        _check_failure(make_engine, timeout)


def check_network(text: str, make_engine: Callable[[], Engine], *, timeout: float = TIMEOUT, **settings: Any) -> None:
    """Raise `CheckFailed` unless a probe network emits the same tuples on this engine as locally without packs."""
    with tempfile.TemporaryDirectory(prefix="txstorm-check-") as place:
        alone = observe(build(text, max_spout_pending=1), LocalEngine(), Path(place, "alone"))
        seen = observe(build(text, **PACKED, **settings), make_engine(), Path(place, "seen"), timeout)
        expect("files left in the spill directory", [], sorted(Path(place, "seen", "spill").iterdir()))
    check_seen(text, SIZES, seen)
    expect("number of rows in the log", len(alone.log), len(seen.log))
    for number, (wanted, got) in enumerate(zip(alone.log, seen.log, strict=True)):
        expect(f"row {number} of the log", wanted, got)
    expect("totals", alone.totals, seen.totals)


class FailsOnce(BatchBolt):
    """Bolt that counts its tuples and fails the first attempt at txid `FAILS_AT`."""

    fields = ("n",)

    def prepare(self, context: TaskContext, collector: Collector, attempt: TransactionAttempt) -> None:
        """Set the count to zero."""
        self.collector, self.attempt, self.n = collector, attempt, 0

    def execute(self, tuple: Tuple) -> None:  # noqa: A002 - Storm's word
        """Count one tuple."""
        self.n += 1

    def finish_batch(self) -> None:
        """Emit the count, or raise an error in the attempt that is to fail."""
        if self.attempt == (FAILS_AT, FAILS_AT):
            raise FailedException("as it should")
        self.collector.emit(self.n)


def _check_failure(make_engine: Callable[[], Engine], timeout: float) -> None:
    engine = make_engine()
    with tempfile.TemporaryDirectory(prefix="txstorm-check-") as place:
        engine.start(program_of(compile_plan(_failing()), place))
        try:
            first = _process(engine, timeout, (1, 1), (2, 2), (3, 3))
            expect("txids, up to the one that failed", [1, 2], [one.attempt.txid for one in first])
            expect("who failed", [None, ("fails", "failed", "FailedException")], [_cause(one) for one in first])
            again = _process(engine, timeout, (2, 4), (3, 5))
            expect("attempts, when they are tried again", [(2, 4), (3, 5)], [tuple(one.attempt) for one in again])
            expect("failures, when they are tried again", [None, None], [_cause(one) for one in again])
            counts = [sum(cargo.batch.column("n")[0].as_py() for cargo in one.cargo if cargo.batch) for one in again]
            expect("counts of the attempts that went well", [2, 3], counts)
        finally:
            engine.close()


def _failing() -> Topology:
    builder = TransactionalTopologyBuilder("fails", "numbers", MemoryTransactionalSpout([[]], ["n"]), 2)
    builder.set_bolt("fails", FailsOnce(), 2).fields_grouping("numbers", ["n"])
    builder.set_committer_bolt("count", FailsOnce()).global_grouping("fails")
    return builder.build_topology()


def _process(engine: Engine, timeout: float, *attempts: tuple[int, int]) -> list[Processed]:
    """Process `attempts` as one pack on `engine`, where the batch of txid N has N numbers; return the results."""
    inputs = tuple(
        TxidInput(TransactionAttempt(*one), {"meta": {"0": [0, one[0]]}}, 0, {"0": [(n,) for n in range(one[0])]})
        for one in attempts
    )
    future = engine.submit(Pack(inputs))
    try:
        return future.result(timeout)
    except FutureTimeout:
        raise CheckFailed(f"expected pack {list(attempts)} to be processed, got nothing within {timeout} s") from None


def _cause(outcome: Processed) -> tuple[str, str, str] | None:
    error = outcome.error
    return None if error is None else (error.component, error.kind, error.type)
