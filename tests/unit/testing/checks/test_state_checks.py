"""`check_state`: it accepts the shipped map stores and rejects faulty ones."""

import json
import sqlite3
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import astuple, replace
from functools import partial
from pathlib import Path

import pytest
from maps.map_nets import Plain

from txstorm import MapBackend, MapMark, MapRow, MemoryBackend, SqlAlchemyBackend
from txstorm.testing import CheckFailed, check_state
from txstorm.testing.checks.rules import in_parallel


def named(kind: Callable[[], MapBackend]) -> Callable[[str], MapBackend]:
    """Return a factory that opens the in-memory map of a given name, always the same one."""
    stores: defaultdict[str, MapBackend] = defaultdict(kind)
    return stores.__getitem__


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.integration)])
def opened(request, tmp_path: Path) -> Iterator[Callable[[str], SqlAlchemyBackend]]:
    """Yield a function that opens the map of a name in a database; the stores are closed after the test."""
    url = request.getfixturevalue("postgres").url if request.param == "postgresql" else f"sqlite:///{tmp_path}/own.db"
    made: list[SqlAlchemyBackend] = []

    def store(name: str) -> SqlAlchemyBackend:
        made.append(SqlAlchemyBackend(url, name))
        return made[-1]

    yield store
    for one in made:
        one.dispose()


def test_sql_databases_pass_and_many_stores_open_a_new_map_concurrently(opened) -> None:
    check_state(opened, prefix="state_checks", seeds=[1])
    for number in range(5):
        stores = [opened(f"opened_{number}") for _ in range(6)]
        start = threading.Barrier(len(stores))

        def new(store: SqlAlchemyBackend, start: threading.Barrier = start) -> None:
            start.wait()
            assert store.mark() is None

        in_parallel([partial(new, store) for store in stores])


def test_a_store_in_memory_compares_its_mark_under_its_lock():
    backend, ours, theirs = MemoryBackend(), MapMark("t", "1", 1, 0, 5), MapMark("t", "1", 2, 0, 5)

    class Overtaken:
        """A lock that another coordinator acquires first, to move the mark."""

        def __enter__(self):
            backend._mark = theirs

        def __exit__(self, *_):
            pass

    backend._lock = Overtaken()
    assert not backend.put_marked({}, None, ours)
    assert backend.mark() == theirs


def memory(**methods: Callable[..., object]) -> type[MemoryBackend]:
    """Return a class of stores in memory with other methods."""
    return type("Faulty", (MemoryBackend,), methods)


def getting(answer: Callable[[list[MapRow | None]], list[MapRow | None]]) -> type[MemoryBackend]:
    """Return a class of stores that return what `answer` makes of the rows."""
    return memory(multi_get=lambda self, keys: answer(MemoryBackend.multi_get(self, keys)))


def putting(rows_of: Callable[..., dict[str, MapRow | None]]) -> type[MemoryBackend]:
    """Return a class of stores that put what `rows_of(store, rows)` returns."""
    return memory(_put=lambda self, rows: MemoryBackend._put(self, rows_of(self, rows)))


def as_float(row: MapRow | None) -> MapRow | None:
    return replace(row, value=float(row.value)) if row is not None and type(row.value) is int else row


def loose(keys: Iterable[str]) -> list[str]:
    """Return keys without trailing blanks, which many databases ignore."""
    return [key.rstrip() for key in keys]


class Adds(MemoryBackend):
    """Fault: puts are not idempotent: numbers are added to the stored ones."""

    def _put(self, rows):
        for key, row in rows.items():
            before = self.rows.get(key)
            if row is not None and before is not None and type(before.value) is type(row.value) is int:
                rows = {**rows, key: replace(row, value=row.value + before.value)}
        super()._put(rows)


class NoLock(MemoryBackend):
    """Fault: compares and writes without a lock."""

    def put_marked(self, rows, expected, mark):
        if self._mark != expected:
            return False
        self._put(rows)
        self._mark = mark
        return True


class LocksTheWrite(NoLock):
    """Fault: acquires the lock only after the comparison."""

    def put_marked(self, rows, expected, mark):
        if self._mark != expected:
            return False
        with self._lock:
            self._put(rows)
            self._mark = mark
        return True


class LocksEachStep(NoLock):
    """Fault: acquires the lock once to compare the mark and again to write, so that both are not atomic."""

    def put_marked(self, rows, expected, mark):
        with self._lock:
            same = self._mark == expected
        if same:
            with self._lock:
                self._put(rows)
                self._mark = mark
        return same


class OwnLocks:
    """Fault: handles on the same dict have a separate lock each."""

    def __init__(self, shared: NoLock) -> None:
        self.shared, self.lock = shared, threading.Lock()
        self.multi_get, self.multi_put, self.mark = shared.multi_get, shared.multi_put, shared.mark

    def put_marked(self, rows, expected, mark):
        with self.lock:
            return self.shared.put_marked(rows, expected, mark)


class ReadThenWrite:
    """Fault (SQLite): reads the mark in one transaction, and writes rows and mark in another one."""

    def __init__(self, path: Path, *, mends: bool = False) -> None:
        self.path, self.mends = path, mends
        with self.opened() as base:
            base.execute("CREATE TABLE IF NOT EXISTS entries (key TEXT PRIMARY KEY, value TEXT)")

    @contextmanager
    def opened(self):
        with closing(sqlite3.connect(self.path, timeout=60, isolation_level=None)) as base:
            yield base

    def multi_get(self, keys):
        with self.opened() as base:
            found = dict(base.execute("SELECT key, value FROM entries").fetchall())
        return [MapRow(*json.loads(found[f"row {key}"])) if f"row {key}" in found else None for key in keys]

    def multi_put(self, rows):
        with self.opened() as base:
            base.execute("BEGIN IMMEDIATE")
            self.write(base, rows)
            base.execute("COMMIT")

    def write(self, base, rows):
        for key, row in rows.items():
            base.execute("DELETE FROM entries WHERE key = ?", (f"row {key}",))
            if row is not None:
                base.execute("INSERT INTO entries VALUES (?, ?)", (f"row {key}", json.dumps(astuple(row))))

    def stored(self, base):
        found = base.execute("SELECT value FROM entries WHERE key = 'mark'").fetchone()
        return MapMark(*json.loads(found[0])) if found else None

    def mark(self):
        with self.opened() as base:
            return self.stored(base)

    def put_marked(self, rows, expected, mark):
        with self.opened() as base:
            if self.mends:
                base.execute("BEGIN IMMEDIATE")
            if self.stored(base) != expected:
                return False
            if not self.mends:
                base.execute("BEGIN IMMEDIATE")
            self.write(base, rows)
            base.execute("REPLACE INTO entries VALUES ('mark', ?)", (json.dumps(astuple(mark)),))
            base.execute("COMMIT")
            return True


def ignoring(field: str) -> type[MemoryBackend]:
    """Return a class of faulty stores that ignore one field when they compare marks."""

    class Ignoring(MemoryBackend):
        def put_marked(self, rows, expected, mark):
            with self._lock:
                stored = self._mark
            if None not in (stored, expected):
                expected = replace(expected, **{field: getattr(stored, field)})
            return super().put_marked(rows, expected, mark)

    return Ignoring


class ComparesTheTxid(MemoryBackend):
    def put_marked(self, rows, expected, mark):
        stored = self.mark()
        same = (stored and stored.txid) == (expected and expected.txid)
        return super().put_marked(rows, stored if same else expected, mark)


RACE = r"of concurrent puts over one mark, one succeeds \(seed 0\): round \d+, .* in a second step\?"
PART_OF_A_MARK = "other marks are refused: answer to a put that expects "
FAULTY = {
    "omits absent keys": (getting(lambda rows: [row for row in rows if row is not None]), "unknown keys have none"),
    "an order of its own": (
        memory(multi_get=lambda self, keys: MemoryBackend.multi_get(self, sorted(keys))),
        "rows come back in the order of the keys",
    ),
    "no prev": (
        putting(lambda self, rows: {key: row and replace(row, prev=None) for key, row in rows.items()}),
        "rows keep all their fields",
    ),
    "numbers as floats": (
        getting(lambda rows: [*map(as_float, rows)]),
        "rows keep all their fields: row 0: expected .'0', .*got .'0.0', ",
    ),
    "ignores trailing blanks in keys": (
        memory(
            multi_get=lambda self, keys: MemoryBackend.multi_get(self, loose(keys)),
            _put=lambda self, rows: MemoryBackend._put(self, dict(zip(loose(rows), rows.values(), strict=True))),
        ),
        "keys keep their letters",
    ),
    "inserts only": (
        putting(lambda self, rows: {key: row for key, row in rows.items() if row is None or key not in self.rows}),
        "puts overwrite and may be repeated",
    ),
    "keeps": (putting(lambda self, rows: {key: row for key, row in rows.items() if row is not None}), "None deletes"),
    "deletes a removed key at once": (
        putting(lambda self, rows: {key: row and (None if row.value is None else row) for key, row in rows.items()}),
        "removals are found until a later txid: the removed row",
    ),
    "adds to stored numbers": (Adds, "puts overwrite"),
    "returns the stored objects themselves": (
        memory(multi_get=lambda self, keys: [self.rows.get(key) for key in keys]),
        "other handles see what was put: the row another handle put",
    ),
    "accepts any mark": (
        memory(put_marked=lambda self, rows, expected, mark: MemoryBackend.put_marked(self, rows, self.mark(), mark)),
        "other marks are refused: answer to a put over a mark that was never stored: expected False, got True",
    ),
    "writes the rows before it checks the mark": (
        memory(
            put_marked=lambda self, rows, *marks: self.multi_put(rows) or MemoryBackend.put_marked(self, {}, *marks)
        ),
        "other marks are refused: the rows after it",
    ),
    "reports success of a refused put": (
        memory(put_marked=lambda self, *arguments: MemoryBackend.put_marked(self, *arguments) or True),
        "other marks are refused: answer",
    ),
    **{kind.__name__: (kind, RACE) for kind in (NoLock, LocksTheWrite, LocksEachStep)},
    "compares the txid": (ComparesTheTxid, PART_OF_A_MARK),
    **{f"ignores the {field}": (ignoring(field), PART_OF_A_MARK) for field in MapMark.__slots__},
}


@pytest.mark.parametrize(("kind", "says"), FAULTY.values(), ids=FAULTY)
def test_faulty_stores_are_rejected(kind: Callable[[], MapBackend], says: str) -> None:
    with pytest.raises(CheckFailed, match=f"^state: {says}"):
        check_state(named(kind), seeds=[])


def test_faulty_openings_of_a_map_are_rejected(tmp_path: Path) -> None:
    """One store for all maps, a new map at every opening, a lock of each handle, and two transactions in SQLite."""
    store, shared = MemoryBackend(), named(NoLock)
    for make, says in (
        (lambda name: store, ""),
        (lambda name: MemoryBackend(), "other handles see what was put"),
        (lambda name: OwnLocks(shared(name)), RACE),
        (lambda name: ReadThenWrite(tmp_path / name), RACE),
    ):
        with pytest.raises(CheckFailed, match=f"^state: {says}"):
            check_state(make, seeds=[])
    check_state(lambda name: ReadThenWrite(tmp_path / f"mended-{name}", mends=True), seeds=[1])


class LosesAnswers(MemoryBackend):
    """A correct store that loses every third response, either after the put or without it."""

    puts = 0

    def put_marked(self, rows, expected, mark):
        LosesAnswers.puts += 1
        if threading.current_thread() is threading.main_thread() or self.puts % 3:
            return super().put_marked(rows, expected, mark)
        if self.puts % 2:
            super().put_marked(rows, expected, mark)
        raise TimeoutError("no answer")


@pytest.mark.parametrize("kind", [MemoryBackend, Plain, LosesAnswers])
def test_stores_in_memory_pass_even_if_they_lose_responses(kind: Callable[[], MapBackend]) -> None:
    check_state(named(kind), seeds=[1])
