"""Snapshot stores against a plain model; what is damaged, foreign, newer, read-only or full; entries of every type."""

import os
import sqlite3
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import fs

from txstorm.clocks import Clock
from txstorm.errors import InputError
from txstorm.hailstorm import SnapshotStore, open_store
from txstorm.hailstorm.entries import entries_of, entries_text, keyed_entries, keyed_rows, state_of
from txstorm.hailstorm.stores import DirectoryStore

KINDS = ("memory", "dir", "sql")
FIRST, SECOND, THIRD = (Clock({"q-0": at}) for at in (4, 2, 9))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 60), 1 << 60) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), inner, max_size=3),
    max_leaves=5,
)  # fmt: skip
WHERE = st.tuples(st.sampled_from(["a/b", "..", "a"]), st.integers(0, 1))
STEPS = st.lists(
    st.tuples(st.sampled_from(["save", "save", "save", "forget", "reopen"]), WHERE, JSON, st.integers(0, 3)),
    max_size=12,
)


def spec(kind, place):
    return {"memory": f"memory:{place}", "dir": f"dir:{place}", "sql": f"sql:sqlite:///{place}.db"}[kind]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25, deadline=None)
@given(steps=STEPS, keep=st.integers(1, 3))
def test_a_store_is_a_list_of_the_last_saves_of_each_instance(kind, steps, keep, tmp_path_factory):
    place = tmp_path_factory.mktemp("store") / "s"
    store, model = open_store(spec(kind, place), keep), {}
    for what, (bolt, instance), state, offset in steps:
        clock, known = Clock({"q": offset}), model.setdefault((bolt, instance), [])
        others = [one for one in known if one[1] != clock]
        if what == "save":
            store.save(bolt, instance, state, clock)
            known[:] = [(state, clock), *others][:keep]
        elif what == "forget":
            store.forget(bolt, instance, clock)
            known[:] = others
        else:
            store.close()
            store = open_store(spec(kind, place), keep)
        for (bolt, instance), known in model.items():
            assert store.clocks(bolt, instance) == [clock for _, clock in known]
            assert store.restore(bolt, instance) == (known[0] if known else None)
            for state, clock in known:
                assert store.restore(bolt, instance, clock) == (state, clock)
        assert store.restore("a", 0, Clock({"q": 7})) is None
    store.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_store_belongs_to_one_topology_and_format(kind, tmp_path):
    place = tmp_path / "s"
    for topology in ("tags", "tags"):
        store = open_store(spec(kind, place))
        store.bind(topology)
        store.save("counts", 0, {"m": 2}, FIRST)
    with pytest.raises(InputError, match="belongs to topology 'tags', not to 'words'"):
        open_store(spec(kind, place)).bind("words")
    if kind == "sql":
        with sqlite3.connect(f"{place}.db") as database:
            database.execute("UPDATE txstorm_snapshots SET version = 2")
    if kind == "dir":
        saved = DirectoryStore(place)
        saved._check_owner = lambda topology, version: None
        import txstorm.hailstorm.stores as module

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "VERSION", 2)
            saved.save("counts", 0, {}, SECOND)
    if kind != "memory":  # nothing of a newer version is in the memory of this process
        with pytest.raises(InputError, match="has format 2, this txstorm reads 1"):
            open_store(spec(kind, place)).bind("tags")


def test_leftovers_and_damaged_files_are_passed_over_and_named(tmp_path, caplog):
    store = open_store(f"dir:{tmp_path}", 3)
    for at, clock in enumerate((FIRST, SECOND, THIRD)):
        store.save("counts", 0, {"m": at}, clock)
    folder = tmp_path / "counts" / "0"
    newest = max(folder.iterdir())
    newest.write_bytes(newest.read_bytes()[:-9] + bytes(9))
    (folder / f"{newest.name}.0.tmp").write_bytes(b"half")
    assert store.restore("counts", 0) == ({"m": 1}, SECOND)  # it was there before it was damaged
    again = open_store(f"dir:{tmp_path}", 3)
    assert again.clocks("counts", 0) == [SECOND, FIRST]
    assert again.restore("counts", 0, THIRD) is None
    assert newest.name in caplog.text and "left over" in caplog.text
    again.save("counts", 0, {"m": 3}, THIRD)  # its number is above that of the damaged one
    assert open_store(f"dir:{tmp_path}").clocks("counts", 0) == [THIRD, SECOND, FIRST]


class _Full(fs.FileSystemHandler):
    """A file system whose disk is full after some bytes; all else is that of a local directory."""

    def __init__(self, left):
        self.local, self.left = fs.LocalFileSystem(), left

    def open_output_stream(self, path, metadata):
        outer, stream = self, self.local.open_output_stream(path)

        class Writer:
            closed = False

            def write(self, data):
                outer.left -= len(data)
                if outer.left < 0:
                    stream.write(bytes(data)[: len(data) // 2])
                    raise OSError(28, "No space left on device")
                return stream.write(data)

            def close(self):
                stream.close()

            flush, writable, readable = (lambda self: None), (lambda self: True), (lambda self: False)

        return pa.PythonFile(Writer(), mode="w")

    def get_file_info(self, paths):
        return self.local.get_file_info(paths)

    def get_file_info_selector(self, selector):
        return self.local.get_file_info(selector)

    def create_dir(self, path, recursive):
        self.local.create_dir(path, recursive=recursive)

    def move(self, src, dest):
        self.local.move(src, dest)

    def delete_file(self, path):
        self.local.delete_file(path)

    def open_input_stream(self, path):
        return self.local.open_input_stream(path)

    def _no(self, *args, **more):
        raise NotImplementedError

    get_type_name = lambda self: "full"  # noqa: E731
    normalize_path = lambda self, path: path  # noqa: E731
    open_append_stream = open_input_file = copy_file = delete_dir = delete_dir_contents = _no
    delete_root_dir_contents = _no


def _unwritable(kind, place):
    if kind == "full":
        store = DirectoryStore(place, filesystem=fs.PyFileSystem(handler := _Full(1 << 20)))
        return store, partial(setattr, handler, "left", 99)
    store = open_store(spec(kind, place))

    def shut():
        if kind == "sql":  # a page count that is reached is a full disk for SQLite
            store._tables._engine.dispose()
            os.chmod(f"{place}.db", 0)
            os.rename(f"{place}.db", f"{place}.gone")
            os.mkdir(f"{place}.db")
        else:  # as root may write anywhere, a file takes the place of the directory
            folder = place / "counts" / "1"
            folder.parent.mkdir(exist_ok=True, parents=True)
            folder.write_text("")

    return store, shut


@pytest.mark.parametrize("kind", ["full", "dir", "sql"])
def test_a_save_that_fails_names_everything_and_leaves_the_older_states(kind, tmp_path):
    store, shut = _unwritable(kind, tmp_path / "s")
    store.save("counts", 0, {"m": 1}, FIRST)
    shut()
    with pytest.raises(InputError, match=r"(?s)snapshot store .*: cannot save of instance 1 of bolt 'counts'"):
        store.save("counts", 1, {"m": "x" * 5000}, SECOND)
    if kind != "sql":
        assert store.restore("counts", 0) == ({"m": 1}, FIRST)
        assert not list((tmp_path / "s").rglob("*.tmp"))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("dir:", "expected memory:, dir:PATH"),
        ("s3://bucket", "expected memory:, dir:PATH"),
        (7, "expected memory:"),
        ("dir:nothing://x", "nothing"),
        ("sql:no url", "expected a database URL"),
        ("sql:sqlite://", "a SQLite database in memory"),
    ],
)
def test_other_specs_are_refused(given, message):
    with pytest.raises(InputError, match=message):
        open_store(given)
    with pytest.raises(InputError, match="keep"):
        open_store("memory:x", 0)
    own = SnapshotStore()
    assert open_store(own) is own


@pytest.mark.parametrize("state", [{1: 2}, {"a": float("nan")}, {"a": b"x"}, object()])
def test_what_is_no_json_is_refused(state):
    with pytest.raises(InputError, match="a saved state is a JSON value"):
        open_store("memory:none").save("counts", 0, state, FIRST)


NOW, DAY = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC), date(2026, 1, 2)
TEXTS, TOP = ["a", "", None, "\0", "\0a", "null"], pa.list_(pa.struct([("key", pa.string()), ("count", pa.int64())]))
COLUMNS = {
    "text": (pa.string(), TEXTS),
    "int": (pa.int64(), [1, -5, None, 1 << 62, 0, 7]),
    "float": (pa.float64(), [0.1, float("inf"), None, -0.0, 1e300, 2.0]),
    "bool": (pa.bool_(), [True, False, None, True, False, True]),
    "bytes": (pa.binary(), [b"", b"\0\xff", None, b"a", b"b", b"c"]),
    "time": (pa.timestamp("us", tz="UTC"), [NOW, None, NOW.replace(year=1), NOW, NOW, NOW]),
    "day": (pa.date32(), [DAY, None, DAY.replace(year=1), DAY, DAY, DAY]),
    "decimal": (pa.decimal128(38, 9), [Decimal("1.500000000"), None, Decimal(0), Decimal(7), Decimal(8), Decimal(9)]),
    "top": (TOP, [[{"key": "a", "count": 2}], [], None, [], [], []]),
}


@pytest.mark.parametrize("value", list(COLUMNS))
@pytest.mark.parametrize("keys", [("text",), ("int",), ("decimal",), ("text", "time"), ("bytes",)])
def test_rows_of_every_type_become_entries_and_rows_again(keys, value):
    names = [f"k{at}" for at in range(len(keys))]
    fields = [pa.field(name, COLUMNS[kind][0]) for name, kind in zip(names, keys, strict=True)]
    state = pa.field("state", COLUMNS[value][0])
    columns = [pa.array(values, kind) for kind, values in (COLUMNS[one] for one in (*keys, value))]
    rows = pa.table(columns, schema=pa.schema([*fields, state]))
    entries = keyed_entries(rows, names, "state", as_json=False)
    for kept in (entries, entries_of(state_of(entries))):
        assert repr(keyed_rows(kept, fields, state, as_json=False).to_pylist()) == repr(rows.to_pylist())
    assert entries_text(entries).startswith("{")


@pytest.mark.parametrize("kind", ["int", "bytes", "time", "decimal", "top", "bool"])
def test_entries_of_another_type_are_refused(kind):
    field = pa.field("state", COLUMNS[kind][0])
    with pytest.raises(InputError, match="expected values of the type"):
        keyed_rows(entries_of({"a": "x y"}), [pa.field("k", pa.string())], field, as_json=False)
