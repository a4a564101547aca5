"""Checks for a user-defined state backend (a store of maps): rules for calls and races, and a word-count topology.

This is one module because the checks and their rules share their test cases.
"""

from __future__ import annotations

import itertools
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, cast, get_args

from txstorm.api.attempt import TransactionAttempt
from txstorm.api.bolt import BatchBolt
from txstorm.api.context import TaskContext
from txstorm.api.external import (
    OPAQUE,
    MapBackend,
    MapKind,
    MapMark,
    MapRow,
    MapState,
    MarkedMapBackend,
)
from txstorm.api.output import Collector
from txstorm.api.tuples import Tuple
from txstorm.spouts.memory import OpaqueMemoryTransactionalSpout
from txstorm.state.external.map_rows import key_text
from txstorm.testing.checks.rules import CheckFailed, checking, expect, in_parallel
from txstorm.testing.checks.schedules import play
from txstorm.testing.driver import TopologyTestDriver
from txstorm.topology.builder import TransactionalTopologyBuilder
from txstorm.topology.graph import Topology

Another = Callable[[], MapBackend]
"""Function that opens another handle on the same map."""
AnotherMarked = Callable[[], MarkedMapBackend]

MANY = 2500
THREADS = 6
ROUNDS = 16
DEPTH, PAUSES = 3, 0.3
"""Maximum depth of calls into a store at which a racing thread may pause, and the share of lines where it does."""
NUMBERS, TEXTS = ("epoch", "timeline", "txid"), ("topology", "incarnation", "content")
MARK_FIELDS = (*NUMBERS, *TEXTS)
_TWO_STEPS = (
    "; does put_marked read the mark, compare it, and write in a second step? Compare and write in one step: one "
    "UPDATE ... WHERE over all fields of the mark, in the transaction of the rows, or a lock around both"
)
VALUES: tuple[Any, ...] = (
    0,
    -1,
    2**53 - 1,
    1.5,
    "",
    "it's 日本 😀 %_",
    True,
    False,
    [],
    {},
    [1, [None, "x"], {"a": None}],
    {"b": 1, "a": {"": [0.25]}},
)
KEYS = ("", "a", "A", "a ", " a", "ä", "a%", "a_", "a'b", '"a"', "日本", "😀", "x" * 2000)


def unknown_keys_have_none(another: Another) -> None:
    """Check that a key that was never put has no row, and that a read of no keys returns no rows."""
    store = another()
    expect("rows of two unknown keys", [None, None], list(store.multi_get(["a", "b"])))
    expect("rows of no keys", [], list(store.multi_get([])))
    store.multi_put({})
    expect("rows after nothing was put", [None], list(store.multi_get(["a"])))


def rows_come_back_in_the_order_of_the_keys(another: Another) -> None:
    """Check that rows are returned in the order of the requested keys, with None for keys without a row."""
    store = another()
    store.multi_put({key: MapRow(key * 2, 1) for key in ("c", "a", "b")})
    wanted = [MapRow("bb", 1), None, MapRow("aa", 1), MapRow("cc", 1)]
    expect("rows of b, x, a, c", wanted, list(store.multi_get(["b", "x", "a", "c"])))


def rows_keep_all_their_fields(another: Another) -> None:
    """Check that a row is returned with its value, txid, timeline and prev unchanged, for every kind of JSON value."""
    store = another()
    rows = {
        f"{number}": MapRow(value, 2**40 + number, number % 3, VALUES[-1 - number])
        for number, value in enumerate(VALUES)
    }
    store.multi_put(rows)
    for (key, row), found in zip(rows.items(), store.multi_get(list(rows)), strict=True):
        expect(f"row {key}", _exactly(row), None if found is None else _exactly(found))


def keys_keep_their_letters(another: Another) -> None:
    """Check that keys are compared exactly, without case folding, trimming or wildcards."""
    store = another()
    rows = {key: MapRow(number, 1) for number, key in enumerate(KEYS)}
    store.multi_put(rows)
    expect("rows of keys that look alike", list(rows.values()), list(store.multi_get(KEYS)))


def puts_overwrite_and_may_be_repeated(another: Another) -> None:
    """Check that a put overwrites the existing row, and is idempotent."""
    store = another()
    store.multi_put({"a": MapRow(1, 1), "b": MapRow(1, 1)})
    for times in ("once", "twice"):
        store.multi_put({"a": MapRow(2, 2, 0, 1), "c": MapRow(2, 2)})
        wanted = [MapRow(2, 2, 0, 1), MapRow(1, 1), MapRow(2, 2)]
        expect(f"rows after the second put was made {times}", wanted, list(store.multi_get(["a", "b", "c"])))


def none_deletes(another: Another) -> None:
    """Check that putting None deletes a row, and is ignored for a key without one."""
    store = another()
    store.multi_put({"a": MapRow(1, 1), "b": MapRow(2, 1)})
    store.multi_put({"a": None, "x": None})
    expect("rows after a delete of 'a' and 'x'", [None, MapRow(2, 1), None], list(store.multi_get(["a", "b", "x"])))


def removals_are_found_until_a_later_txid(another: Another) -> None:
    """Check that a row whose value is None is a tombstone, which reads return as long as its txid may be replayed."""
    store = another()
    store.multi_put({"a": MapRow(1, 1), "b": MapRow(1, 1)})
    store.multi_put({"a": MapRow(None, 2, 0, 1)})
    expect("the removed row", [MapRow(None, 2, 0, 1)], list(store.multi_get(["a"])))
    store.multi_put({"b": MapRow(2, 2, 0, 1)})
    expect("the removed row after another put of its txid", [MapRow(None, 2, 0, 1)], list(store.multi_get(["a"])))
    store.multi_put({"b": MapRow(3, 3, 0, 2)})
    (found,) = store.multi_get(["a"])
    expect("whether it is removed after a put of a later txid", True, found is None or found.value is None)
    store.multi_put({"a": MapRow(4, 4)})
    store.multi_put({"b": MapRow(5, 5, 0, 3)})
    expect("the row that was put after its removal", [MapRow(4, 4)], list(store.multi_get(["a"])))


def many_rows_at_once(another: Another) -> None:
    """Check that thousands of rows can be written and read in one call."""
    store = another()
    rows = {f"k{number}": MapRow(number, 7) for number in range(MANY)}
    store.multi_put(rows)
    keys = [*reversed(rows), "x"]
    expect(f"rows of {MANY} keys", [*reversed(rows.values()), None], list(store.multi_get(keys)))


def other_handles_see_what_was_put(another: Another) -> None:
    """Check that a handle sees the puts of others, even after an earlier read, and that returned rows are copies."""
    writer, reader = another(), another()
    expect("the row before", [None], list(reader.multi_get(["a"])))
    writer.multi_put({"a": MapRow([1], 1)})
    for handle in (reader, another()):
        (found,) = handle.multi_get(["a"])
        expect("the row another handle put", MapRow([1], 1), found)
        assert found is not None
        found.value.append(2)
    expect("the row after a reader changed its copy", [MapRow([1], 1)], list(reader.multi_get(["a"])))


# -- stores with a mark ------------------------------------------------------------------------------------------------


def mark(txid: int, epoch: int = 1) -> MapMark:
    """Return a commit mark for `txid`."""
    return MapMark("check", "incarnation", epoch, 0, txid, f"content of {txid}")


def marks_move_with_their_rows(another: AnotherMarked) -> None:
    """Check that the commit mark is None at first, and then, for every handle, the one put last."""
    store, other = another(), another()
    expect("the first mark", None, store.mark())
    expect("answer to the first put", True, store.put_marked({"a": MapRow(1, 1)}, None, mark(1)))
    expect("the mark after it", mark(1), other.mark())
    expect("answer to the second put", True, other.put_marked({"a": MapRow(2, 2, 0, 1)}, mark(1), mark(2)))
    expect("the mark after that", mark(2), store.mark())
    expect("the row after that", [MapRow(2, 2, 0, 1)], list(store.multi_get(["a"])))
    expect("answer to a put without rows", True, store.put_marked({}, mark(2), mark(2, epoch=2)))
    expect("the mark after that", mark(2, epoch=2), other.mark())


def other_marks_are_refused(another: AnotherMarked) -> None:
    """Check that a put that expects a mark other than the stored one returns False and changes nothing."""
    store = another()
    expect(
        "answer to a put over a mark that was never stored",
        False,
        store.put_marked({"a": MapRow(0, 1)}, mark(1), mark(2)),
    )
    stored = mark(1, epoch=2)
    store.put_marked({"a": MapRow(1, 1)}, None, stored)
    numbers = [_with(stored, field, getattr(stored, field) + by) for field in NUMBERS for by in (-1, 1)]
    for wrong in (None, *numbers, *(_with(stored, field, "another") for field in TEXTS)):
        answer = store.put_marked({"a": MapRow(9, 9), "b": MapRow(9, 9)}, wrong, mark(9))
        expect(f"answer to a put that expects {wrong}", False, answer)
        expect("the mark after it", stored, store.mark())
        expect("the rows after it", [MapRow(1, 1), None], list(store.multi_get(["a", "b"])))


def one_put_per_expected_mark(another: AnotherMarked, rng: random.Random) -> None:
    """Check that exactly one of several concurrent puts that expect the same mark succeeds, storing its rows and mark.

    A put that raises an `OSError` may have succeeded, since only its response is lost.
    """
    stores = [another() for _ in range(THREADS)]
    expected: MapMark | None = None
    for number in range(1, ROUNDS + 1):
        marks = _rivals(expected or mark(0), number, rng)
        keys = [f"k{key}" for key in range(rng.choice((1, 20, 60)))]
        answers = _race(stores, keys, expected, marks, rng)
        where = f"round {number}, {THREADS} puts that expect {expected}"
        stored = another().mark()
        told, lost = (
            [one for one, answer in zip(marks, answers, strict=True) if answer is wanted] for wanted in (True, None)
        )
        if len(told) > 1 or not (told or lost):
            msg = f"{where}: expected exactly one to be answered True, got {len(told)}{_TWO_STEPS if told else ''}"
            raise CheckFailed(msg)
        possible: list[MapMark | None] = [*told] or [*lost, expected]
        if stored not in possible:
            raise CheckFailed(f"{where}: expected the stored mark to be one of {possible}, got {stored}{_TWO_STEPS}")
        if stored is not None and stored != expected:
            rows = [MapRow(marks.index(stored), stored.txid)] * len(keys)
            expect(f"{where}: rows of the put whose mark is stored", rows, list(another().multi_get(keys)))
        expected = stored


def _race(
    stores: Sequence[MarkedMapBackend],
    keys: Sequence[str],
    expected: MapMark | None,
    marks: Sequence[MapMark],
    rng: random.Random,
) -> list[bool | None]:
    """Make concurrent puts, one per store, and return their results; None for a lost response."""
    start = threading.Barrier(len(stores))
    answers: list[bool | None] = [None] * len(stores)

    def put(me: int, seed: float) -> None:
        rows = {key: MapRow(me, marks[me].txid) for key in keys}
        pausing = _pausing(random.Random(seed))  # noqa: S311 - a schedule
        start.wait()
        # Without pauses, an in-memory store would mostly compare and write without a thread switch in between.
        sys.settrace(pausing)
        try:
            with suppress(OSError):
                answers[me] = bool(stores[me].put_marked(rows, expected, marks[me]))
        finally:
            sys.settrace(None)

    in_parallel([partial(put, me, rng.random()) for me in range(len(stores))])
    return answers


def _pausing(rng: random.Random) -> Callable[..., Any]:
    """Return a trace function that yields to other threads at random lines of the traced calls."""
    depth = 0

    def lines(frame: Any, event: str, arg: Any) -> Any:
        nonlocal depth
        if event == "return":
            depth -= 1
        elif event == "line" and rng.random() < PAUSES:
            time.sleep(0)
        return lines

    def calls(frame: Any, event: str, arg: Any) -> Any:
        nonlocal depth
        if depth >= DEPTH:
            return None
        depth += 1
        return lines

    return calls


def _rivals(before: MapMark, number: int, rng: random.Random) -> list[MapMark]:
    """Return one mark per thread; in most rounds they differ in one field, from each other or from `before`."""
    field = rng.choice(MARK_FIELDS)
    base = replace(before, txid=before.txid + 1) if rng.random() < 0.5 else before
    texts = isinstance(getattr(base, field), str)
    return [
        _with(base, field, f"{field} {number}-{me}" if texts else getattr(base, field) + 1 + me)
        for me in range(THREADS)
    ]


def _with(mark: MapMark, field: str, value: Any) -> MapMark:
    return replace(mark, **{field: value})


def _exactly(row: MapRow) -> tuple[str, ...]:
    """Return the fields of a row as text, so that 1, 1.0 and True are distinguished."""
    return tuple(repr(one) for one in (row.value, row.txid, row.timeline, row.prev))


STORE_RULES: dict[str, Callable[[Another], None]] = {
    "unknown keys have none": unknown_keys_have_none,
    "rows come back in the order of the keys": rows_come_back_in_the_order_of_the_keys,
    "rows keep all their fields": rows_keep_all_their_fields,
    "keys keep their letters": keys_keep_their_letters,
    "puts overwrite and may be repeated": puts_overwrite_and_may_be_repeated,
    "None deletes": none_deletes,
    "removals are found until a later txid": removals_are_found_until_a_later_txid,
    "many rows at once": many_rows_at_once,
    "other handles see what was put": other_handles_see_what_was_put,
}
MARK_RULES: dict[str, Callable[[AnotherMarked], None]] = {
    "marks move with their rows": marks_move_with_their_rows,
    "other marks are refused": other_marks_are_refused,
}
RACE_RULES: dict[str, Callable[[AnotherMarked, random.Random], None]] = {
    "of concurrent puts over one mark, one succeeds": one_put_per_expected_mark,
}


Make = Callable[[str], MapBackend]
WORDS = "abcde"
LENGTH = 40


def check_state(make_backend: Make, *, prefix: str = "check", seeds: Iterable[int] = range(2)) -> None:
    """Raise `CheckFailed` unless the store satisfies `txstorm.api.external.MapBackend`.

    A store with `put_marked` is also checked as a `MarkedMapBackend`. Finally a topology counts words in the store on
    the test driver, in each kind of map, with failures, restarts and, if the map is opaque, changing batches.

    Args:
        make_backend: opens the map with a given name, as a new process would. Equal names denote the same map. A
            new map is empty.
        prefix: prefix of the names of the maps, which must be new.
        seeds: seeds of the races and schedules; an error names the seed. If empty, races use seed 0.

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
    """Bolt that counts words in a map; a word is removed when its count reaches five."""

    fields = ("word",)

    def __init__(self, counts: MapState) -> None:
        self.counts = counts

    def prepare(self, context: TaskContext, collector: Collector, attempt: TransactionAttempt) -> None:
        """Set up for one batch."""
        self.context, self.words = context, Counter[str]()

    def execute(self, tuple: Tuple) -> None:  # noqa: A002 - Storm's word
        """Count one word."""
        self.words[tuple["word"]] += 1

    def finish_batch(self) -> None:
        """Add the counts of the batch to the map, one by one."""
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

    # The size is drawn when a batch is planned, so a replay differs unless the size is constant.
    spout.set_take(lambda txid: take(1, 6))
    with TopologyTestDriver(topology(), pending=3) as driver:
        play(driver, rng, lambda: driver.restart(topology()))
    wanted = {word: words.count(word) % 5 or None for word in WORDS}
    rows = another().multi_get([key_text(word, "check") for word in WORDS])
    expect("counts", wanted, {word: row and row.value for word, row in zip(WORDS, rows, strict=True)})
