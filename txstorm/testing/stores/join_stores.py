"""Checks for a user-defined join store: its calls, reopening, marks, and random schedules against a naive model."""

from __future__ import annotations

import itertools
import random
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from operator import itemgetter
from time import time_ns
from typing import Any

from txstorm.api.external import Mark
from txstorm.api.join_store import JoinStore, MarkedJoinStore, StoreRow
from txstorm.testing.checks.rules import checking, expect

Make = Callable[[], JoinStore]

APART = 10_000
"""Microseconds between the times of two checks: expiries never decrease, not even over several checks of a storage."""
FUTURE = 253_402_300_799_999_999
"""The last microsecond of the year 9999."""
KEYS: tuple[Any, ...] = (
    "",
    "a",
    "A",
    "a ",
    "ä",
    "日本 😀",
    "a:b",
    "a/b?c=d&e",
    "{a}",
    "a\nb\0c",
    "*",
    '"',
    "x" * 2000,
    "1",
    1,
    0,
    -1,
    2**63 - 1,
    -(2**63),
    b"",
    b"a",
    b"\x00\xff\n",
    datetime(2026, 1, 2, 3, 4, 5, 678901, UTC),
    datetime(1969, 12, 31, 23, 59, 59, 999999, UTC),
    date(2026, 1, 2),
    Decimal("1.5"),
    Decimal("-1e-7"),
    0.5,
    ("a", 1),
    ("a", "1"),
    (b"a", date(2026, 1, 2), Decimal("0.1")),
)
VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -(2**63),
    2**53 + 1,
    0.1,
    -1e300,
    float("inf"),
    "",
    "it's 日本 😀\n\0",
    b"",
    b"\x00\xff",
    datetime(2026, 1, 2, 3, 4, 5, 678901, UTC),
    date(2026, 1, 2),
    Decimal("1.50"),
    [],
    [1, ["x", None]],
    (1, ("x", b"y")),
    {},
    {"b": 1, "a": {"": [0.25]}},
    {1: "one"},
)
MANY = 3_000
STEPS = 40


@dataclass
class _Place:
    """A store under check, with keys that no other check uses.

    Attributes:
        make: makes the store.
        store: the store of most calls.
        base: the time, in microseconds, to which those of its rows are relative.
    """

    make: Make
    store: JoinStore
    base: int
    name: str = field(default_factory=lambda: uuid.uuid4().hex[:12])

    def key(self, name: Any) -> tuple[str, Any]:
        """Return a key of this check."""
        return (self.name, *name) if isinstance(name, tuple) else (self.name, name)

    def row(self, key: Any, id_: Any, time: int, **value: Any) -> StoreRow:
        """Return a row of a key of this check, `time` microseconds after `base`."""
        return StoreRow(self.key(key), id_, self.base + time, value)

    def found(self, key: Any, start: int | None = None, end: int | None = None) -> list[tuple[Any, int, Any]]:
        """Return (id, time, value) of the rows of one key, with bounds and times relative to `base`."""
        bounds = (None if one is None else self.base + one for one in (start, end))
        rows = looked_up(self.store, [self.key(key)], *bounds)[0]
        return [(row.id, row.time - self.base, dict(row.value)) for row in rows]


def looked_up(
    store: JoinStore, keys: Sequence[Any], start: int | None = None, end: int | None = None
) -> list[Sequence[StoreRow]]:
    """Return the rows of each of `keys`; fail if the answer lacks one, or has rows of another one."""
    found = store.get_many(keys, start, end)
    expect("the type of an answer, a mapping of keys to rows", True, isinstance(found, Mapping))
    expect("the keys that an answer lacks", [], [key for key in keys if key not in found])
    for key in keys:
        expect(f"rows for {key!r} that are no StoreRow", [], [row for row in found[key] if not _is_row(row)])
        expect(f"keys of rows for {key!r}", {key}, {key, *(row.key for row in found[key])})
    expect("the number of keys found", len(set(keys)), len(found))
    return [found[key] for key in keys]


def unknown_keys_have_no_rows(at: _Place) -> None:
    """Check that a key without rows has an empty sequence, and that an empty look-up and put are accepted."""
    expect("rows of an unknown key", [], at.found("nothing"))
    expect("a look-up of no keys", {}, dict(at.store.get_many([], None, None)))
    at.store.put_many([])


def a_key_has_many_rows(at: _Place) -> None:
    """Check that rows of one key with different ids are all kept."""
    at.store.put_many([at.row("k", "a", 1, n=1), at.row("k", "b", 2, n=2)])
    at.store.put_many([at.row("k", "c", 3, n=3), at.row("l", "a", 1, n=4)])
    expect("rows of a key", [("a", 1, {"n": 1}), ("b", 2, {"n": 2}), ("c", 3, {"n": 3})], at.found("k"))
    expect("rows of another key with an id that the first one has", [("a", 1, {"n": 4})], at.found("l"))


def a_repeated_put_changes_nothing(at: _Place) -> None:
    """Check that rows that are put again, together or with others, are there once."""
    rows = [at.row("k", number, number, n=number) for number in range(5)]
    wanted = [(number, number, {"n": number}) for number in range(5)]
    at.store.put_many(rows[:3])
    at.store.put_many(rows[:3])
    expect("rows after a repeated put", wanted[:3], at.found("k"))
    at.store.put_many(rows)
    expect("rows after a put of stored and new rows", wanted, at.found("k"))
    at.store.put_many([rows[0], rows[0]])
    expect("rows after a put that has a row twice", wanted, at.found("k"))


def the_first_put_stays(at: _Place) -> None:
    """Check that a row whose (key, id) is stored is not replaced, whatever its time and value."""
    at.store.put_many([at.row("k", "a", 5, n=1), at.row("k", "a", 5, n=2)])
    expect("the row of an id that a put has twice", [("a", 5, {"n": 1})], at.found("k"))
    for time in (5, 3, 9):
        at.store.put_many([at.row("k", "a", time, n=3), at.row("k", f"b{time}", 20 + time)])
        rule = f"the rows after a put of the same key and id at a time of {time - 5:+d}"
        expect(rule, [("a", 5, {"n": 1})], at.found("k", 0, 10))
    expect("other rows of these puts", ["b3", "b5", "b9"], [row[0] for row in at.found("k", 20, 40)])


def both_bounds_are_included_and_none_is_open(at: _Place) -> None:
    """Check look-ups with each kind of bounds."""
    at.store.put_many([at.row("k", str(time), time) for time in (1, 2, 3, 4, 5)])
    for start, end in ((2, 4), (2, 2), (None, 2), (4, None), (None, None), (6, None), (None, 0), (0, 6), (4, 2)):
        wanted = [t for t in range(1, 6) if (start is None or start <= t) and (end is None or t <= end)]
        expect(f"times from {start} to {end}, both included", wanted, [row[1] for row in at.found("k", start, end)])


def times_are_exact(at: _Place) -> None:
    """Check that microseconds are kept and compared, before 1970 and up to the year 9999."""
    times = (-(10**15), -1, 0, 1, 2**53 - 1, 2**53, 2**53 + 1, FUTURE - 1, FUTURE)
    at.store.put_many([StoreRow(at.key("k"), number, time, {}) for number, time in enumerate(times)])
    for time in times:
        found = looked_up(at.store, [at.key("k")], time, time)[0]
        expect(f"times from {time} to {time}", [time], [row.time for row in found])
    expect("all times", list(times), [row.time for row in looked_up(at.store, [at.key("k")])[0]])


def rows_are_ordered_by_time_and_id(at: _Place) -> None:
    """Check the order of rows that were put in another one, also of numbers as ids."""
    rows = [at.row("k", id_, time) for time, id_ in ((3, 10), (1, 8), (3, 9), (2, 99), (3, 100), (1, -1))]
    for row in rows:
        at.store.put_many([row])
    at.store.put_many([at.row("s", id_, 1) for id_ in ("b", "a", "aa", "B")])
    wanted = [(-1, 1), (8, 1), (99, 2), (9, 3), (10, 3), (100, 3)]
    expect("the order by (time, id)", wanted, [row[:2] for row in at.found("k")])
    expect("the order of ids that are texts", ["B", "a", "aa", "b"], [row[0] for row in at.found("s")])


def keys_and_ids_keep_their_types(at: _Place) -> None:
    """Check keys and ids of every type, and that such as 1 and "1" differ; each is found by a key that is equal."""
    for number, key in enumerate(KEYS):
        alone, inner = StoreRow(key, at.name, at.base + number, {"n": number}), at.row(key, key, number)
        at.store.put_many([alone, inner])
    for number, key in enumerate(KEYS):
        mine = [row for row in looked_up(at.store, [key])[0] if row.id == at.name]
        expect(f"rows of the key {key!r}", [(at.base + number, number)], [(row.time, row.value["n"]) for row in mine])
        [(id_, time, _)] = at.found(key)
        expect(f"row and id of the key {(at.name, key)!r}", (type(key), key, number), (type(id_), id_, time))
    found = looked_up(at.store, [at.key(key) for key in KEYS])
    expect("times found for all keys at once", [at.base + n for n in range(len(KEYS))], [row.time for [row] in found])


def values_keep_their_types(at: _Place) -> None:
    """Check that fields come back with the types and content that were put."""
    at.store.put_many([at.row("k", number, number, v=value, w="w") for number, value in enumerate(VALUES)])
    at.store.put_many([at.row("none", 1, 1)])
    found = [row[2] for row in at.found("k")]
    wanted = [{"v": value, "w": "w"} for value in VALUES]
    expect("values", [_typed(one) for one in wanted], [_typed(one) for one in found])
    expect("a row without fields", [(1, 1, {})], at.found("none"))


def many_rows_in_one_call(at: _Place) -> None:
    """Check that thousands of rows and keys can be put and looked up at once."""
    rows = [at.row(number % 1000, number, number, text="x" * 100) for number in range(MANY)]
    at.store.put_many(rows)
    found = looked_up(at.store, [at.key(number) for number in range(1500)])
    counts = [len(one) for one in found]
    expect("rows of 1000 keys, and of 500 without rows", [MANY // 1000] * 1000 + [0] * 500, counts)
    at.store.put_many([at.row("one", number, number // 7) for number in range(MANY)])
    expect("rows of one key", [(n, n // 7, {}) for n in range(MANY)], at.found("one"))


def expiry_keeps_what_is_not_older(at: _Place) -> None:
    """Check that the rows below the bound, and no others, are removed, and that later puts are accepted."""
    rows = [at.row(key, time, time) for key in ("k", "l") for time in range(-3, 4)]
    at.store.put_many(rows)
    at.store.expire(at.base)
    for key in ("k", "l"):
        kept: list[Any] = [(time, time, {}) for time in range(4)]
        expect("rows from the bound on, after an expiry", kept, at.found(key, 0, None))
        expect("rows below the bound, after an expiry", [], at.found(key, None, -1))
    at.store.expire(at.base)
    at.store.put_many([at.row("k", 4, 2), at.row("n", 5, 0)])
    expect("rows after another expiry and put", [0, 1, 2, 4, 3], [row[0] for row in at.found("k", 0, None)])
    expect("a new key after an expiry", [5], [row[0] for row in at.found("n", 0, None)])
    at.store.put_many(rows)
    expect("rows from the bound on, after a repetition", [0, 1, 2, 4, 3], [row[0] for row in at.found("k", 0, None)])
    at.store.expire(at.base + 3)
    for key in ("k", "l"):
        expect("rows after a later expiry", [3], [row[0] for row in at.found(key)])


def a_put_is_read_at_once_by_others(at: _Place) -> None:
    """Check that another object of the same storage, if `make` returns such, has the rows; and so after a close."""
    at.store.put_many([at.row("k", "a", 1, n=1)])
    other = at.make()
    shared = bool(looked_up(other, [at.key("k")])[0])
    if shared:
        other.put_many([at.row("k", "a", 2, n=2), at.row("k", "b", 3)])
        expect("rows that another object has put", [("a", 1, {"n": 1}), ("b", 3, {})], at.found("k"))
        _close(other)
    before = at.found("k")
    _close(at.store)
    rule = "another object has the rows of a put only after the store was closed"
    expect(rule, shared, bool(looked_up(at.make(), [at.key("k")])[0]))
    expect("rows after the store was closed and used again", before, at.found("k"))


RULES: dict[str, Callable[[_Place], None]] = {
    rule.__name__.replace("_", " "): rule
    for rule in (
        unknown_keys_have_no_rows,
        a_key_has_many_rows,
        a_repeated_put_changes_nothing,
        the_first_put_stays,
        both_bounds_are_included_and_none_is_open,
        times_are_exact,
        rows_are_ordered_by_time_and_id,
        keys_and_ids_keep_their_types,
        values_keep_their_types,
        many_rows_in_one_call,
        expiry_keeps_what_is_not_older,
        a_put_is_read_at_once_by_others,
    )
}


def check_join_store(make: Callable[[], JoinStore], *, seeds: Iterable[int] = range(20)) -> None:
    """Raise `CheckFailed` unless the store satisfies the port `txstorm.api.join_store.JoinStore`.

    Args:
        make: makes a store. If all are on the same storage, it is also checked that one reads what another has put.
            The storage should hold no other rows: those of the checks have new keys each time, and older ones expire.
        seeds: seeds of random schedules; an error names the seed.

    Raises:
        CheckFailed: a rule is broken; its name is in the message.
    """
    bases = itertools.count(time_ns() // 1000, APART)

    def check(rule: str, function: Callable[..., None], *arguments: Any) -> None:
        with checking(f"join store: {rule}"):
            at = _Place(make, make(), next(bases))
            try:
                function(at, *arguments)
            finally:
                with suppress(Exception):  # the broken rule is what is reported
                    _close(at.store)

    for rule, function in RULES.items():
        check(rule, function)
    check("the mark is compared and set", _check_mark)
    for seed in seeds:
        check(f"a random schedule (seed {seed})", _play, random.Random(seed))  # noqa: S311 - a schedule


def _close(store: Any) -> None:
    if hasattr(store, "close"):
        store.close()


def _check_mark(at: _Place) -> None:
    store: Any = at.store
    if not isinstance(store, MarkedJoinStore):
        return
    before = store.mark()
    first, second = (Mark(at.name, "it's 日本", 2**53 + 1, 0, txid, "ab") for txid in (1, 2))
    expect("replacing a mark that is not there", (False, before), (store.replace_mark(second, first), store.mark()))
    expect("replacing the mark", (True, first), (store.replace_mark(before, first), store.mark()))
    expect("replacing a mark that has changed", (False, first), (store.replace_mark(before, second), store.mark()))
    at.store.put_many([at.row("k", "a", 1)])
    at.store.expire(at.base - 1)
    expect("the mark after a put and an expiry", first, store.mark())
    other: Any = at.make()
    found = other.mark()
    if found is not None and found.topology == at.name:
        expect("the mark that another object reads", first, found)
    expect("replacing the mark again", (True, second), (store.replace_mark(first, second), store.mark()))


def _play(at: _Place, rng: random.Random) -> None:
    """Apply random calls to a store and to a dict; compare all that can be read."""
    rows: dict[tuple[Any, Any], StoreRow] = {}
    names = ["p", "q", 7, *rng.sample(KEYS, 3)]
    bound = ids = 0
    for _ in range(STEPS):
        action = rng.random()
        if action < 0.6:
            put = [
                at.row(rng.choice(names), ids + rng.randrange(12), bound + rng.randrange(20), n=rng.randrange(100))
                for _ in range(rng.choice((1, 1, 2, 5, 30)))
            ]
            at.store.put_many(put)
            if rng.random() < 0.3:
                at.store.put_many(put)
            for row in put:
                rows.setdefault((row.key, row.id), row)
        elif action < 0.8:
            bound += rng.randrange(12)
            at.store.expire(at.base + bound)
            # Rows below may return if they are put again: their ids are not used again.
            rows = {key: row for key, row in rows.items() if row.time >= at.base + bound}
            ids += 12
        else:
            _close(at.store)
        for _ in range(3):
            start, end = (rng.choice((None, bound + rng.randrange(25))) for _ in range(2))
            _compare(at, rows.values(), names, (start, end))


def _compare(
    at: _Place, rows: Collection[StoreRow], names: Sequence[Any], bounds: tuple[int | None, int | None]
) -> None:
    """Compare what is found within `bounds`, relative to the base, for all keys at once."""
    start, end = (None if one is None else at.base + one for one in bounds)
    keys = [at.key(name) for name in names]
    for name, key, found in zip(names, keys, looked_up(at.store, keys, start, end), strict=True):
        wanted = [
            (row.time - at.base, row.id, dict(row.value))
            for row in rows
            if row.key == key and (start is None or start <= row.time) and (end is None or row.time <= end)
        ]
        got = [(row.time - at.base, row.id, dict(row.value)) for row in found]
        expect(f"rows of {name!r} from {bounds[0]} to {bounds[1]}", sorted(wanted, key=itemgetter(0, 1)), got)


def _is_row(row: Any) -> bool:
    return all(hasattr(row, name) for name in ("key", "id", "time", "value"))


def _typed(value: Any) -> Any:
    """Return `value` with the names of all types in it."""
    kind = type(value).__name__
    if isinstance(value, dict):
        return kind, [(_typed(key), _typed(one)) for key, one in value.items()]
    if isinstance(value, list | tuple):
        return kind, [_typed(one) for one in value]
    return kind, value
