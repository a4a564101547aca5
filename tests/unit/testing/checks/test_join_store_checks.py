"""The checks of join stores find the fault of every broken store, and accept simple ones that are right."""

import re
from dataclasses import replace

import pytest

from txstorm.api.join_store import JoinStore
from txstorm.joins import MemoryStore
from txstorm.testing import CheckFailed, CountingStore, check_join_store


class Simple(JoinStore):
    """The simplest store that is right."""

    def __init__(self):
        self.rows = {}

    def put_many(self, rows):
        for row in map(self.stored, rows):
            self.rows.setdefault(self.identity(row), row)

    def stored(self, row):
        return row

    def identity(self, row):
        return row.key, row.id

    def get_many(self, keys, start, end):
        return {key: self.of_key(key, start, end) for key in keys}

    def of_key(self, key, start, end):
        found = [row for row in self.rows.values() if row.key == key and self.within(row, start, end)]
        return sorted(found, key=self.order)

    def within(self, row, start, end):
        return (start is None or start <= row.time) and (end is None or row.time <= end)

    def order(self, row):
        return row.time, row.id

    def expire(self, before):
        self.rows = {key: row for key, row in self.rows.items() if row.time >= before}


class ExpiresLater(Simple):
    """Right, too: rows that a look-up does not return may be removed later."""

    before = float("-inf")

    def within(self, row, start, end):
        return row.time >= self.before and super().within(row, start, end)

    def expire(self, before):
        self.before = before


class NotDerived:
    """Right, too: a class that is not derived from ours, and has nothing but the three calls."""

    def __init__(self):
        store = Simple()
        self.put_many, self.get_many, self.expire = store.put_many, store.get_many, store.expire


@pytest.mark.parametrize("make", [Simple, ExpiresLater, NotDerived, MemoryStore, lambda: CountingStore(Simple())])
def test_stores_that_are_right_are_accepted(make):
    """A11: for a store that is new each time, and for one that all objects share."""
    check_join_store(make, seeds=range(20))
    one = make()
    check_join_store(lambda: one, seeds=range(3))


class OverwritesOlderTimes(Simple):
    def put_many(self, rows):
        for row in rows:
            if row.time < self.rows.get((row.key, row.id), row).time:
                self.rows[row.key, row.id] = row
        super().put_many(rows)


class StrippedKeys(Simple):
    def stored(self, row):
        return replace(row, key=self.stripped(row.key))

    def of_key(self, key, start, end):
        return [replace(row, key=key) for row in super().of_key(self.stripped(key), start, end)]

    def stripped(self, key):
        parts = key if isinstance(key, tuple) else (key,)
        return tuple(part.strip() if isinstance(part, str) else part for part in parts)


class ExpiresWholeKeys(Simple):
    def expire(self, before):
        old = {row.key for row in self.rows.values() if row.time < before}
        self.rows = {key: row for key, row in self.rows.items() if row.key not in old}


class ExpiresOneKey(Simple):
    def expire(self, before):
        first = next(iter(self.rows.values())).key
        self.rows = {key: row for key, row in self.rows.items() if row.time >= before or row.key != first}


class FreesIdsTooEarly(Simple):
    """Forgets all ids at an expiry, so that a late repetition is stored again."""

    def expire(self, before):
        super().expire(before)
        self.rows = {(key, len(self.rows)): row for key, row in self.rows.items()}


class RefusesEmptyPuts(Simple):
    def put_many(self, rows):
        assert rows, "nothing to put"
        super().put_many(rows)


STORAGE = {}


class WritesAtClose(Simple):
    """Keeps rows in the object until it is closed, although others read the storage."""

    def __init__(self):
        self.rows = dict(STORAGE)

    def close(self):
        STORAGE.update(self.rows)


class OverwritesMarks(MemoryStore):
    def replace_mark(self, expected, mark):
        self._mark = mark
        return True


class NeverReplacesMarks(MemoryStore):
    def replace_mark(self, expected, mark):
        return expected == self._mark


class LosesTheMark(MemoryStore):
    def expire(self, before):
        super().expire(before)
        self._mark = None


def simple(**methods):
    """Return a class like `Simple` but for `methods`."""
    return type("Simple", (Simple,), methods)


def with_values(of_row):
    """Return a class of stores that keep, of each row, the value that `of_row` makes of its fields."""
    return simple(stored=lambda self, row: replace(row, value=of_row(row.value)))


KEPT = "expiry keeps what is not older: rows from the bound on, after an expiry"
GONE = "expiry keeps what is not older: rows below the bound, after an expiry"
TWICE = "the first put stays: the row of an id that a put has twice"
BROKEN = {
    "replaces": (simple(put_many=lambda self, rows: self.rows.update({(row.key, row.id): row for row in rows})), TWICE),
    "overwrites older times": (
        OverwritesOlderTimes,
        "the first put stays: the rows after a put of the same key and id at a time of -2",
    ),
    "the last of a put wins": (
        simple(
            put_many=lambda self, rows: Simple.put_many(self, list({(row.key, row.id): row for row in rows}.values()))
        ),
        TWICE,
    ),
    "keeps one row of a key": (simple(identity=lambda self, row: row.key), "a key has many rows"),
    "repeats": (simple(identity=lambda self, row: (row.key, row.id, len(self.rows))), "a repeated put changes nothing"),
    "knows times as identity": (
        simple(identity=lambda self, row: (row.key, row.id, row.time)),
        "the first put stays: the rows after a put of the same key and id at a time of",
    ),
    "shares ids of keys": (simple(identity=lambda self, row: row.id), "a key has many rows: rows of another key"),
    "excludes the end": (
        simple(within=lambda self, row, start, end: Simple.within(self, row, start, end and end - 1)),
        "times from 2 to 4, both included: expected [2, 3, 4], got [2, 3]",
    ),
    "excludes the start": (
        simple(within=lambda self, row, start, end: Simple.within(self, row, start and start + 1, end)),
        "times from 2 to 4, both included: expected [2, 3, 4], got [3, 4]",
    ),
    "takes None as zero": (
        simple(within=lambda self, row, start, end: (start or 0) <= row.time <= (end or 0)),
        "a key has many rows",
    ),
    "orders by time only": (simple(order=lambda self, row: row.time), "the order by (time, id)"),
    "orders by arrival": (simple(order=lambda self, row: 0), "the first put stays: other rows of these puts"),
    "orders ids as text": (simple(order=lambda self, row: (row.time, str(row.id))), "the order by (time, id)"),
    "leaves unknown keys out": (
        simple(
            get_many=lambda self, *asked: {key: some for key, some in Simple.get_many(self, *asked).items() if some}
        ),
        "unknown keys have no rows: the keys that an answer lacks: expected [], got [(",
    ),
    "answers None for unknown keys": (
        simple(of_key=lambda self, *asked: Simple.of_key(self, *asked) or None),
        "unknown keys have no rows",
    ),
    "answers lists": (
        simple(get_many=lambda self, *asked: list(Simple.get_many(self, *asked).values())),
        "unknown keys have no rows: the type of an answer, a mapping of keys to rows",
    ),
    "answers tuples": (
        simple(of_key=lambda self, *asked: [(row.time, row.id, row.value) for row in Simple.of_key(self, *asked)]),
        "a key has many rows: rows for (",
    ),
    "answers half": (
        simple(get_many=lambda self, *asked: dict(list(Simple.get_many(self, *asked).items())[:1000])),
        "many rows in one call",
    ),
    "stores half": (simple(put_many=lambda self, rows: Simple.put_many(self, rows[:2048])), "many rows in one call"),
    "keys as text": (
        simple(
            identity=lambda self, row: (str(row.key), str(row.id)),
            of_key=lambda self, key, *_: sorted(
                (replace(row, key=key) for (name, _), row in self.rows.items() if name == str(key)), key=self.order
            ),
        ),
        "",
    ),
    "stripped keys": (StrippedKeys, "keys and ids keep their types"),
    "rounds": (simple(stored=lambda self, row: replace(row, time=row.time // 1000 * 1000)), ""),
    "floats": (
        simple(
            within=lambda self, row, start, end: Simple.within(
                self, replace(row, time=float(row.time)), start and float(start), end and float(end)
            )
        ),
        "times are exact: times from 9007199254740992 to 9007199254740992",
    ),
    "loses types of values": (
        with_values(lambda value: {name: list(one) if isinstance(one, tuple) else one for name, one in value.items()}),
        "values keep their types",
    ),
    "loses fields that are None": (
        with_values(lambda value: {name: one for name, one in value.items() if one is not None}),
        "values keep their types",
    ),
    "expires the bound": (simple(expire=lambda self, before: Simple.expire(self, before + 1)), KEPT),
    "expires whole keys": (ExpiresWholeKeys, KEPT),
    "never expires": (simple(expire=lambda self, before: None), f"{GONE}: expected [], got [(-3, "),
    "expires one key": (ExpiresOneKey, GONE),
    "expires everything": (simple(expire=lambda self, before: self.rows.clear()), KEPT),
    "frees ids early": (FreesIdsTooEarly, "expiry keeps what is not older: rows from the bound on, after a repetition"),
    "refuses empty puts": (
        RefusesEmptyPuts,
        "unknown keys have no rows: expected no error, got AssertionError: nothing to put",
    ),
    "unusable after a close": (simple(close=lambda self: delattr(self, "rows")), "a put is read at once by others"),
    "forgets at a close": (
        simple(close=lambda self: self.rows.clear()),
        "a put is read at once by others: rows after the store was closed and used again",
    ),
    "writes at a close": (WritesAtClose, "another object has the rows of a put only after the store was closed"),
    "overwrites marks": (OverwritesMarks, "the mark is compared and set: replacing a mark that is not there"),
    "never replaces marks": (NeverReplacesMarks, "the mark is compared and set: replacing the mark"),
    "loses the mark": (LosesTheMark, "the mark is compared and set: the mark after a put and an expiry"),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_every_broken_store_is_found(fault):
    kind, says = BROKEN[fault]
    with pytest.raises(CheckFailed, match=f"join store: .*{re.escape(says)}"):
        check_join_store(kind, seeds=[])


@pytest.mark.parametrize("fault", [*list(BROKEN)[:9], "expires the bound", "expires whole keys"])
def test_random_schedules_find_them_as_well(fault, monkeypatch):
    """The seed of the message replays the schedule."""
    monkeypatch.setattr("txstorm.testing.stores.join_stores.RULES", {})
    kind, _ = BROKEN[fault]
    with pytest.raises(CheckFailed, match=r"a random schedule \(seed \d+\): rows of") as first:
        check_join_store(kind, seeds=range(20))
    seed = int(re.search(r"seed (\d+)", str(first.value))[1])
    with pytest.raises(CheckFailed) as again:
        check_join_store(kind, seeds=[seed])

    def text(caught):
        return re.sub(r"'[0-9a-f]{12}'", "", str(caught.value))

    assert text(first) == text(again)
