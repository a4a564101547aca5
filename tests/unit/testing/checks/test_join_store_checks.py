"""The checks of join stores find the fault of every broken store, and accept simple ones that are right."""

from __future__ import annotations

import re

import pytest

from txstorm.api.join_store import JoinStore, StoreRow
from txstorm.joins import MemoryStore
from txstorm.testing import CheckFailed, CountingStore, check_join_store


class Simple(JoinStore):
    """The simplest store that is right."""

    def __init__(self):
        self.rows = {}

    def put_many(self, rows):
        for row in rows:
            self.rows.setdefault((row.key, row.id), row)

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
    check_join_store(make, seeds=range(50))
    one = make()
    check_join_store(lambda: one, seeds=range(3))


class Overwrites(Simple):
    def put_many(self, rows):
        self.rows.update({(row.key, row.id): row for row in rows})


class OverwritesOlderTimes(Simple):
    def put_many(self, rows):
        for row in rows:
            if row.time < self.rows.get((row.key, row.id), row).time:
                self.rows[row.key, row.id] = row
        super().put_many(rows)


class LastOfAPutWins(Simple):
    def put_many(self, rows):
        super().put_many(list({(row.key, row.id): row for row in rows}.values()))


class KeepsOneRowOfAKey(Simple):
    def put_many(self, rows):
        for row in rows:
            self.rows.setdefault(row.key, row)


class AppendsRepetitions(Simple):
    def put_many(self, rows):
        for row in rows:
            self.rows[row.key, row.id, len(self.rows)] = row


class KnowsTimesAsIdentity(Simple):
    def put_many(self, rows):
        for row in rows:
            self.rows.setdefault((row.key, row.id, row.time), row)


class SharesIdsOfKeys(Simple):
    def put_many(self, rows):
        for row in rows:
            self.rows.setdefault(row.id, row)


class ExcludesTheEnd(Simple):
    def within(self, row, start, end):
        return (start is None or start <= row.time) and (end is None or row.time < end)


class ExcludesTheStart(Simple):
    def within(self, row, start, end):
        return (start is None or start < row.time) and (end is None or row.time <= end)


class TakesNoneAsZero(Simple):
    def within(self, row, start, end):
        return (start or 0) <= row.time <= (end or 0)


class OrdersByTimeOnly(Simple):
    def order(self, row):
        return row.time


class OrdersByArrival(Simple):
    def order(self, row):
        return 0


class OrdersIdsAsText(Simple):
    def order(self, row):
        return row.time, str(row.id)


class LeavesUnknownKeysOut(Simple):
    def get_many(self, keys, start, end):
        return {key: rows for key, rows in super().get_many(keys, start, end).items() if rows}


class AnswersNoneForUnknownKeys(Simple):
    def of_key(self, key, start, end):
        return super().of_key(key, start, end) or None


class AnswersLists(Simple):
    def get_many(self, keys, start, end):
        return list(super().get_many(keys, start, end).values())


class AnswersTuples(Simple):
    def of_key(self, key, start, end):
        return [(row.time, row.id, row.value) for row in super().of_key(key, start, end)]


class AnswersHalf(Simple):
    def get_many(self, keys, start, end):
        found = super().get_many(keys, start, end)
        return dict(list(found.items())[:1000])


class StoresHalf(Simple):
    def put_many(self, rows):
        super().put_many(rows[:2048])


class TextKeys(Simple):
    def put_many(self, rows):
        for row in rows:
            self.rows.setdefault((str(row.key), str(row.id)), row)

    def of_key(self, key, start, end):
        return sorted(
            (StoreRow(key, row.id, row.time, row.value) for (name, _), row in self.rows.items() if name == str(key)),
            key=self.order,
        )


class StrippedKeys(Simple):
    def put_many(self, rows):
        super().put_many([StoreRow(stripped(row.key), row.id, row.time, row.value) for row in rows])

    def of_key(self, key, start, end):
        found = super().of_key(stripped(key), start, end)
        return [StoreRow(key, row.id, row.time, row.value) for row in found]


def stripped(key):
    parts = key if isinstance(key, tuple) else (key,)
    return tuple(part.strip() if isinstance(part, str) else part for part in parts)


class Rounds(Simple):
    def put_many(self, rows):
        super().put_many([StoreRow(row.key, row.id, row.time // 1000 * 1000, row.value) for row in rows])


class Floats(Simple):
    def within(self, row, start, end):
        return (start is None or float(start) <= float(row.time)) and (end is None or float(row.time) <= float(end))


class LosesTypesOfValues(Simple):
    def put_many(self, rows):
        values = [
            {name: list(one) if isinstance(one, tuple) else one for name, one in row.value.items()} for row in rows
        ]
        super().put_many([StoreRow(row.key, row.id, row.time, value) for row, value in zip(rows, values, strict=True)])


class LosesFieldsThatAreNone(Simple):
    def put_many(self, rows):
        values = [{name: one for name, one in row.value.items() if one is not None} for row in rows]
        super().put_many([StoreRow(row.key, row.id, row.time, value) for row, value in zip(rows, values, strict=True)])


class ExpiresTheBound(Simple):
    def expire(self, before):
        super().expire(before + 1)


class ExpiresWholeKeys(Simple):
    def expire(self, before):
        old = {row.key for row in self.rows.values() if row.time < before}
        self.rows = {key: row for key, row in self.rows.items() if row.key not in old}


class NeverExpires(Simple):
    def expire(self, before):
        pass


class ExpiresOneKey(Simple):
    def expire(self, before):
        first = next(iter(self.rows.values())).key
        self.rows = {key: row for key, row in self.rows.items() if row.time >= before or row.key != first}


class ExpiresEverything(Simple):
    def expire(self, before):
        self.rows = {}


class FreesIdsTooEarly(Simple):
    """Forgets all ids at an expiry, so that a late repetition is stored again."""

    def expire(self, before):
        super().expire(before)
        self.rows = {(key, len(self.rows)): row for key, row in self.rows.items()}


class RefusesEmptyPuts(Simple):
    def put_many(self, rows):
        assert rows, "nothing to put"
        super().put_many(rows)


class CannotBeUsedAfterClose(Simple):
    def close(self):
        self.rows = None


class ForgetsAtClose(Simple):
    def close(self):
        self.rows = {}


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


BROKEN = {
    Overwrites: "the first put stays: the row of an id that a put has twice",
    OverwritesOlderTimes: "the first put stays: the rows after a put of the same key and id at a time of -2",
    LastOfAPutWins: "the first put stays: the row of an id that a put has twice",
    KeepsOneRowOfAKey: "a key has many rows",
    AppendsRepetitions: "a repeated put changes nothing",
    KnowsTimesAsIdentity: "the first put stays: the rows after a put of the same key and id at a time of",
    SharesIdsOfKeys: "a key has many rows: rows of another key",
    ExcludesTheEnd: "times from 2 to 4, both included: expected [2, 3, 4], got [2, 3]",
    ExcludesTheStart: "times from 2 to 4, both included: expected [2, 3, 4], got [3, 4]",
    TakesNoneAsZero: "a key has many rows",
    OrdersByTimeOnly: "the order by (time, id)",
    OrdersByArrival: "the first put stays: other rows of these puts",
    OrdersIdsAsText: "the order by (time, id)",
    LeavesUnknownKeysOut: "unknown keys have no rows: the keys that an answer lacks: expected [], got [(",
    AnswersNoneForUnknownKeys: "unknown keys have no rows",
    AnswersLists: "unknown keys have no rows: the type of an answer, a mapping of keys to rows",
    AnswersTuples: "a key has many rows: rows for (",
    AnswersHalf: "many rows in one call",
    StoresHalf: "many rows in one call",
    TextKeys: "",
    StrippedKeys: "keys and ids keep their types",
    Rounds: "",
    Floats: "times are exact: times from 9007199254740992 to 9007199254740992",
    LosesTypesOfValues: "values keep their types",
    LosesFieldsThatAreNone: "values keep their types",
    ExpiresTheBound: "expiry keeps what is not older: rows from the bound on, after an expiry",
    ExpiresWholeKeys: "expiry keeps what is not older: rows from the bound on, after an expiry",
    NeverExpires: "expiry keeps what is not older: rows below the bound, after an expiry: expected [], got [(-3, ",
    ExpiresOneKey: "expiry keeps what is not older: rows below the bound, after an expiry",
    ExpiresEverything: "expiry keeps what is not older: rows from the bound on, after an expiry",
    FreesIdsTooEarly: "expiry keeps what is not older: rows from the bound on, after a repetition",
    RefusesEmptyPuts: "unknown keys have no rows: expected no error, got AssertionError: nothing to put",
    CannotBeUsedAfterClose: "a put is read at once by others",
    ForgetsAtClose: "a put is read at once by others: rows after the store was closed and used again",
    WritesAtClose: "another object has the rows of a put only after the store was closed",
    OverwritesMarks: "the mark is compared and set: replacing a mark that is not there",
    NeverReplacesMarks: "the mark is compared and set: replacing the mark",
    LosesTheMark: "the mark is compared and set: the mark after a put and an expiry",
}


@pytest.mark.parametrize("kind", BROKEN, ids=lambda kind: kind.__name__)
def test_every_broken_store_is_found(kind):
    with pytest.raises(CheckFailed, match=f"join store: .*{re.escape(BROKEN[kind])}"):
        check_join_store(kind, seeds=[])


@pytest.mark.parametrize("kind", [*list(BROKEN)[:9], ExpiresTheBound, ExpiresWholeKeys], ids=lambda kind: kind.__name__)
def test_random_schedules_find_them_as_well(kind, monkeypatch):
    """The seed of the message replays the schedule."""
    monkeypatch.setattr("txstorm.testing.stores.join_stores.RULES", {})
    with pytest.raises(CheckFailed, match=r"a random schedule \(seed \d+\): rows of") as first:
        check_join_store(kind, seeds=range(20))
    seed = int(re.search(r"seed (\d+)", str(first.value))[1])
    with pytest.raises(CheckFailed) as again:
        check_join_store(kind, seeds=[seed])

    def text(caught):
        return re.sub(r"'[0-9a-f]{12}'", "", str(caught.value))

    assert text(first) == text(again)
