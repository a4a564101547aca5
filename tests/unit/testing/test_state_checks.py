"""The check of stores for maps accepts the shipped ones and refuses what is wrong."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from txstorm import MemoryBackend
from txstorm.api.maps import MapBackend, MapRow
from txstorm.clients.sql import SqlAlchemyBackend
from txstorm.testing import CheckFailed, check_state


def named(kind: Callable[[], MapBackend]) -> Callable[[str], MapBackend]:
    """Maps by name, in memory."""
    stores: defaultdict[str, MapBackend] = defaultdict(kind)
    return stores.__getitem__


class Plain:
    """A store that offers the two calls, and nothing more."""

    def __init__(self) -> None:
        self.inner = MemoryBackend()

    def multi_get(self, keys):
        return self.inner.multi_get(keys)

    def multi_put(self, rows):
        self.inner.multi_put(rows)


@pytest.mark.parametrize("kind", [MemoryBackend, Plain])
def test_stores_in_memory_pass(kind: Callable[[], MapBackend]) -> None:
    check_state(named(kind), seeds=[1])


def check_sql(url: str, prefix: str) -> None:
    made: list[SqlAlchemyBackend] = []

    def make(name: str) -> SqlAlchemyBackend:
        made.append(SqlAlchemyBackend(url, name))
        return made[-1]

    try:
        check_state(make, prefix=prefix, seeds=[1])
    finally:
        for one in made:
            one.dispose()


def test_sqlite_passes(tmp_path: Path) -> None:
    check_sql(f"sqlite:///{tmp_path / 'own.db'}", "check")


@pytest.mark.integration
def test_postgresql_passes(postgres) -> None:
    check_sql(postgres.url, "state_checks")


class LeavesOut(MemoryBackend):
    """Gives the rows that are there, and no None for the others."""

    def multi_get(self, keys):
        return [row for row in super().multi_get(keys) if row is not None]


class OrderOfItsOwn(MemoryBackend):
    def multi_get(self, keys):
        return super().multi_get(sorted(keys))


class NoPrev(MemoryBackend):
    def _put(self, rows: Mapping[str, MapRow | None]) -> None:
        super()._put({key: row and replace(row, prev=None) for key, row in rows.items()})


class NumbersAsFloats(MemoryBackend):
    def multi_get(self, keys):
        rows = super().multi_get(keys)
        return [row and replace(row, value=float(row.value) if type(row.value) is int else row.value) for row in rows]


class LooseKeys(MemoryBackend):
    """Blanks at the end of a key mean nothing, as in many databases."""

    def multi_get(self, keys):
        return super().multi_get([key.rstrip() for key in keys])

    def _put(self, rows):
        super()._put({key.rstrip(): row for key, row in rows.items()})


class InsertsOnly(MemoryBackend):
    def _put(self, rows):
        super()._put({key: row for key, row in rows.items() if row is None or key not in self.rows})


class NeverDeletes(MemoryBackend):
    def _put(self, rows):
        super()._put({key: row for key, row in rows.items() if row is not None})


class ForgetsRemovals(MemoryBackend):
    """Deletes a key at once when it is removed."""

    def _put(self, rows):
        super()._put({key: None if row is None or row.value is None else row for key, row in rows.items()})


class Adds(MemoryBackend):
    """Cannot be repeated: numbers are added to what is there."""

    def _put(self, rows):
        for key, row in rows.items():
            before = self.rows.get(key)
            if row is not None and before is not None and type(before.value) is type(row.value) is int:
                rows = {**rows, key: replace(row, value=row.value + before.value)}
        super()._put(rows)


class GivesItsOwn(MemoryBackend):
    """What is read is what is stored, not a copy."""

    def multi_get(self, keys):
        return [self.rows.get(key) for key in keys]


class AnyMark(MemoryBackend):
    def put_marked(self, rows, expected, mark):
        return super().put_marked(rows, self.mark(), mark)


class RowsFirst(MemoryBackend):
    """Puts the rows before it looks at the mark."""

    def put_marked(self, rows, expected, mark):
        self.multi_put(rows)
        return super().put_marked({}, expected, mark)


class LooksOnce(MemoryBackend):
    """Says that it worked when it did not."""

    def put_marked(self, rows, expected, mark):
        super().put_marked(rows, expected, mark)
        return True


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (LeavesOut, "unknown keys have none"),
        (OrderOfItsOwn, "rows come back in the order of the keys"),
        (NoPrev, "rows keep all their fields"),
        (NumbersAsFloats, "rows keep all their fields: row 0: expected .'0', .*got .'0.0', "),
        (LooseKeys, "keys keep their letters"),
        (InsertsOnly, "puts overwrite and may be repeated"),
        (NeverDeletes, "None deletes"),
        (ForgetsRemovals, "removals are found until a later txid: the removed row"),
        (Adds, "puts overwrite"),
        (GivesItsOwn, "other handles see what was put: the row another handle put"),
        (AnyMark, "other marks are refused: answer to a put over a mark nobody made: expected False, got True"),
        (RowsFirst, "other marks are refused: the rows after it"),
        (LooksOnce, "other marks are refused: answer"),
    ],
)
def test_broken_stores_are_refused(kind: Callable[[], MapBackend], says: str) -> None:
    with pytest.raises(CheckFailed, match=f"^state: {says}"):
        check_state(named(kind), seeds=[])


def test_maps_that_are_one_are_refused() -> None:
    store = MemoryBackend()
    with pytest.raises(CheckFailed, match=r"^state: "):
        check_state(lambda name: store, seeds=[])


def test_a_map_that_is_another_each_time_is_refused() -> None:
    with pytest.raises(CheckFailed, match=r"^state: other handles see what was put"):
        check_state(lambda name: MemoryBackend(), seeds=[])
