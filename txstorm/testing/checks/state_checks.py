"""Checks of a store of one's own for maps: its calls, and a topology that counts in it."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import cast, get_args

from txstorm.api.attempt import TransactionAttempt
from txstorm.api.bolt import BatchBolt
from txstorm.api.context import TaskContext
from txstorm.api.external import (
    OPAQUE,
    MapBackend,
    MapKind,
    MapState,
    MarkedMapBackend,
)
from txstorm.api.output import Collector
from txstorm.api.tuples import Tuple
from txstorm.spouts.memory import OpaqueMemoryTransactionalSpout
from txstorm.state.external.map_rows import key_text
from txstorm.testing.checks.rules import checking, expect
from txstorm.testing.checks.schedules import play
from txstorm.testing.checks.states import MARK_RULES, RACE_RULES, STORE_RULES, AnotherMarked
from txstorm.testing.driver import TopologyTestDriver
from txstorm.topology.builder import TransactionalTopologyBuilder
from txstorm.topology.graph import Topology

Make = Callable[[str], MapBackend]
WORDS = "abcde"
LENGTH = 40


def check_state(make_backend: Make, *, prefix: str = "check", seeds: Iterable[int] = range(2)) -> None:
    """Raise `CheckFailed` unless the store keeps the promises of `txstorm.api.external.MapBackend`.

    With `put_marked` those of `MarkedMapBackend` are checked as well. At the end a topology counts in it on the test
    driver, in each kind of map, with failures, restarts and, where the map is opaque, batches that change.

    Args:
        make_backend: opens the map of a name, each time as another process would: the same name is the same map,
            another name another one. A map that was never used is empty.
        prefix: the names of the maps begin with it; they must be new.
        seeds: of the races and schedules; a failure names its own. Without any, marks race with seed 0.

    Raises:
        CheckFailed: a rule is broken; its name is in the message.
    """
    seeds = list(seeds)
    races = seeds or [0]
    names = (f"{prefix}_{number}" for number in itertools.count(1))
    for rule, function in STORE_RULES.items():
        with checking(f"state: {rule}"):
            function(partial(make_backend, next(names)))
    if isinstance(make_backend(next(names)), MarkedMapBackend):
        for rule, marked in MARK_RULES.items():
            with checking(f"state: {rule}"):
                marked(cast(AnotherMarked, partial(make_backend, next(names))))
        for rule, race in RACE_RULES.items():
            for seed in races:
                with checking(f"state: {rule} (seed {seed})"):
                    rng = random.Random(seed)  # noqa: S311 - a schedule
                    race(cast(AnotherMarked, partial(make_backend, next(names))), rng)
    for kind in get_args(MapKind):
        for seed in seeds:
            with checking(f"state: a map of kind {kind!r} counts every tuple once (seed {seed})"):
                rng = random.Random(seed)  # noqa: S311 - a schedule
                _check_counts(kind, partial(make_backend, next(names)), rng)


class CountWords(BatchBolt):
    """Counts words in a map; one that reaches a multiple of five is removed."""

    fields = ("word",)

    def __init__(self, counts: MapState) -> None:
        self.counts = counts

    def prepare(self, context: TaskContext, collector: Collector, attempt: TransactionAttempt) -> None:
        """Begin."""
        self.context, self.words = context, Counter[str]()

    def execute(self, tuple: Tuple) -> None:  # noqa: A002 - Storm's word
        """Count."""
        self.words[tuple["word"]] += 1

    def finish_batch(self) -> None:
        """Add to the map, word by word."""
        handle = self.context.state(self.counts.name)
        for word, times in self.words.items():
            for _ in range(times):
                if handle.update(word, lambda old: (old or 0) + 1) == 5:
                    handle.remove(word)


def _check_counts(kind: MapKind, another: Callable[[], MapBackend], rng: random.Random) -> None:
    words = rng.choices(WORDS, k=LENGTH)
    spout = OpaqueMemoryTransactionalSpout([words], "word", 4)
    take = rng.randint if kind == OPAQUE else lambda *_: 4

    def topology() -> Topology:
        builder = TransactionalTopologyBuilder("check", "words", spout)
        counts = MapState("counts", another(), kind, allow_opaque_spout=True)
        builder.set_committer_bolt("count", CountWords(counts)).fields_grouping("words", ["word"])
        return builder.set_settings({"retry_backoff": 0}).build_topology()

    # The number is drawn when a batch is planned: a replay differs, unless it is always the same.
    spout.set_take(lambda txid: take(1, 6))
    with TopologyTestDriver(topology(), pending=3) as driver:
        play(driver, rng, lambda: driver.restart(topology()))
    wanted = {word: words.count(word) % 5 or None for word in WORDS}
    rows = another().multi_get([key_text(word, "check") for word in WORDS])
    expect("counts", wanted, {word: row and row.value for word, row in zip(WORDS, rows, strict=True)})
