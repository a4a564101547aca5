"""Checks for a user-defined spout: the guarantees of transactional and opaque spouts, under failures and restarts."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from txstorm.api.composite import is_opaque
from txstorm.api.names import DEFAULT_STREAM, counted
from txstorm.api.spout import Spout
from txstorm.errors import InputError
from txstorm.testing.checks.rules import CheckFailed, checking
from txstorm.testing.checks.schedules import Tuples, batch, batch_of, drain, play, text
from txstorm.testing.driver import TopologyTestDriver
from txstorm.topology.builder import TransactionalTopologyBuilder
from txstorm.topology.graph import Topology

SPOUT = "spout"
SHOWN = 5
_LOST_ALWAYS = "a batch begins after the end of the previous one, or the source is not read to its end"
_EXTRA_ALWAYS = "a batch begins before the end of the one before, or what `expected` says is not all"
_LOST_BY_TASKS = (
    "no task emits some records; with n tasks, task i emits the i-th of every n, or the partitions i, i + n, …"
)
_EXTRA_BY_TASKS = "every task emits the whole batch; emit the share of context.task of context.parallelism only"
_LOST_BY_REPLAYS = (
    "the position is kept in the object, or reading takes records out of the source, so that a replay begins too late; "
    "begin where the metadata say"
)
_EXTRA_BY_REPLAYS = (
    "the position is kept in the object, so that a restart begins too early, or a record above a position was given "
    "twice; begin where the metadata say"
)
_OTHER_BATCH = (
    "the batch depends on something besides its metadata (the present end of the source, time, chance); put all that "
    "determines it into the metadata, or use an opaque spout"
)


def check_transactional_spout(
    make_spout: Callable[[], Spout],
    *,
    tasks: Sequence[int] = (1, 3),
    expected: Iterable[Any] | None = None,
    grow: Callable[[], object] | None = None,
    seeds: Iterable[int] = range(3),
) -> None:
    """Raise `CheckFailed` unless the spout replays batches exactly and emits every tuple of its source once.

    It is run on the test driver without failures, then with failures of both phases, restarts with a new spout object,
    and other numbers of tasks: all complete attempts at a txid must emit the same tuples, and the committed tuples must
    be exactly those of the whole source in every case. The error names the likely cause.

    Without `expected`, the output of a run without failures is assumed to be the whole source. Tuples that the spout
    never emits, emits twice in every run, or emits with wrong values are therefore detected only with `expected`.

    Args:
        make_spout: creates the spout on the same source, as a new process would. The source must hold at least
            two transactions and run dry, that is, in the end start no transaction, or empty ones, 24 times in a row.
            Until then it may be unready, or some of its partitions unavailable, half of the time.
        tasks: the numbers of tasks to run it with.
        expected: the tuples of the default stream of the source, if known.
        grow: adds data to the source; the data must not enter transactions that are already planned.
        seeds: seeds of the random schedules; an error names the seed.

    Raises:
        CheckFailed: a rule is broken.
        InputError: the spout is opaque, or its source is not suitable.
    """
    if is_opaque(make_spout()):
        raise InputError("check_transactional_spout: this spout is opaque; use check_opaque_spout")
    _Check("transactional spout", make_spout, tasks, replays_exactly=True).run(expected, grow, seeds)


def check_opaque_spout(
    make_spout: Callable[[], Spout],
    *,
    tasks: Sequence[int] = (1, 3),
    expected: Iterable[Any] | None = None,
    grow: Callable[[], object] | None = None,
    seeds: Iterable[int] = range(3),
) -> None:
    """Raise `CheckFailed` unless every tuple of the spout's source is committed in exactly one transaction.

    Takes the arguments of `check_transactional_spout`; unlike there, replays may emit different batches.

    Raises:
        CheckFailed: a rule is broken.
        InputError: the spout is not opaque, or its source is not suitable.
    """
    if not is_opaque(make_spout()):
        msg = "check_opaque_spout: this spout is not opaque; use check_transactional_spout, which demands more"
        raise InputError(msg)
    _Check("opaque spout", make_spout, tasks, replays_exactly=False).run(expected, grow, seeds)


class _Check:
    def __init__(
        self, kind: str, make_spout: Callable[[], Spout], tasks: Sequence[int], *, replays_exactly: bool
    ) -> None:
        if not tasks or min(tasks) < 1:
            raise InputError(f"tasks: expected numbers of at least 1, got {list(tasks)}")
        self._kind = kind
        self._make_spout = make_spout
        self._tasks = list(tasks)
        self._replays_exactly = replays_exactly
        self._batches = 0

    def run(self, expected: Iterable[Any] | None, grow: Callable[[], object] | None, seeds: Iterable[int]) -> None:
        with checking(self._kind):
            whole = self._straight(self._tasks[0])
        if self._batches < 2:
            given = counted(self._batches, "transaction")
            msg = f"{self._kind}: the source gave tuples in {given}, expected at least 2"
            raise InputError(msg + "; let make_spout take smaller batches or hold more")
        with checking(self._kind):
            if expected is not None:
                rows = (tuple(one) if isinstance(one, list | tuple) else (one,) for one in expected)
                wanted = Counter(text(DEFAULT_STREAM, row) for row in rows)
                _compare("gives its whole source", wanted, whole, _LOST_ALWAYS, _EXTRA_ALWAYS)
            self._try(whole, grow, seeds)

    def _try(self, whole: Tuples, grow: Callable[[], object] | None, seeds: Iterable[int]) -> None:
        for tasks in self._tasks[1:]:
            rule = f"gives the same tuples with {tasks} tasks as with {self._tasks[0]}"
            _compare(rule, whole, self._straight(tasks), _LOST_BY_TASKS, _EXTRA_BY_TASKS)
        for seed in seeds:
            with checking(f"gives every tuple once, with failures and restarts (seed {seed})"):
                got = self._scheduled(random.Random(seed), grow)  # noqa: S311 - a schedule
                all_of_it = whole if grow is None else self._straight(self._tasks[0])
                _compare("committed", all_of_it, got, _LOST_BY_REPLAYS, _EXTRA_BY_REPLAYS)

    def _topology(self, tasks: int) -> Topology:
        builder = TransactionalTopologyBuilder("check", SPOUT, self._make_spout(), tasks)
        return builder.set_settings({"retry_backoff": 0}).build_topology()

    def _straight(self, tasks: int) -> Tuples:
        with (
            checking(f"runs with {counted(tasks, 'task')}"),
            TopologyTestDriver(self._topology(tasks), pending=1) as driver,
        ):
            drain(driver)
            batches = [batch(driver, txid) for txid in range(1, driver.committed + 1)]
        self._batches = sum(1 for batch in batches if batch)
        return sum(batches, Counter())

    def _scheduled(self, rng: random.Random, grow: Callable[[], object] | None) -> Tuples:
        with TopologyTestDriver(self._topology(rng.choice(self._tasks)), pending=3) as driver:
            _grown(driver, grow)
            play(driver, rng, lambda: driver.restart(self._topology(rng.choice(self._tasks))))
            txids = range(1, driver.committed + 1)
            if self._replays_exactly:
                for txid in txids:
                    _compare_attempts(driver, txid)
            return sum((batch(driver, txid) for txid in txids), Counter())


def _compare_attempts(driver: TopologyTestDriver, txid: int) -> None:
    first, *others = filter(driver.is_whole, driver.attempts(txid))
    for other in others:
        rule = f"every attempt at a txid emits the same (txid {txid}, attempt {other} against {first})"
        _compare(rule, batch_of(driver, first), batch_of(driver, other), _OTHER_BATCH, _OTHER_BATCH)


def _compare(rule: str, expected: Tuples, got: Tuples, lost: str, extra: str) -> None:
    """Raise `CheckFailed` if the tuples differ, giving `lost` or `extra` as the likely cause."""
    if expected != got:
        missing, many = expected - got, got - expected
        counts = f"expected {counted(expected.total(), 'tuple')}, got {got.total()}"
        cause = lost if missing else extra
        msg = f"{rule}: {counts}; missing: {_some(missing)}; too many: {_some(many)}; likely cause: {cause}"
        raise CheckFailed(msg)


def _grown(driver: TopologyTestDriver, grow: Callable[[], object] | None) -> None:
    """Grow the source, if `grow` is given, then replay all transactions that were already planned."""
    if grow is not None and driver.active:
        grow()
        driver.fail(min(driver.active))


def _some(tuples: Tuples) -> str:
    shown = [f"{one} ×{n}" if n > 1 else one for one, n in list(tuples.items())[:SHOWN]]
    return ", ".join([*shown, "…"] if len(tuples) > SHOWN else shown) or "none"
