import random
import threading

import pyarrow as pa
import pytest
from handle_cases import COUNTS, Bench, add, apply
from hypothesis import given, settings
from hypothesis import strategies as st
from index_cases import TINY, disk_index, stores, words
from seeded import seeded
from wide_cases import WIDE, wide_rows

from txstorm.api.state import KeyedState
from txstorm.errors import BlockedError, StoppedError, TxstormError
from txstorm.state.index.index import Bounds, StateIndex
from txstorm.storage.rows.schema import changes_schema, state_schema
from txstorm.storage.rows.update_rules import Row


def counted_rows(count):
    """Return rows of the words w0, w1 and so on, whose values are their numbers."""
    return {key: Row((n,), 1, None) for key, n in words(0, count).items()}


@pytest.fixture(params=["memory", "disk"])
def index(request, tmp_path):
    made = StateIndex(COUNTS) if request.param == "memory" else disk_index(tmp_path / "index")
    yield made
    made.close()


def test_apply_adds_rows_and_removes_keys(index):
    apply(index, {key: Row((0,), 1, None) for key in words(0, 50)})
    apply(index, {"a": Row((1,), 1, None), "b": Row((2,), 1, None)})
    apply(index, {"a": Row((5,), 2, (1,)), "b": None, "never": None, **dict.fromkeys(words(10, 30))})
    assert index.rows(["a", "b", "c", "w9", "w10", "w30"]) == [
        Row((5,), 2, (1,)), None, None, Row((0,), 1, None), None, Row((0,), 1, None)
    ]  # fmt: skip
    assert index.last_txid == 2


STATE = pa.table(
    {"word": ["a", "b"], "n": [1, 2], "_txid": [1, 1], "_prev": [None, {"n": 7}], "_kg": [0, 0]}
).cast(state_schema(COUNTS))  # fmt: skip
CHANGES = pa.table(
    {
        "word": ["a", "c", "b", "a"],
        "n": [9, 3, None, 8],
        "_txid": [3, 2, 3, 2],
        "_prev": [{"n": 8}, None, {"n": 2}, {"n": 1}],
        "_op": ["u", "u", "d", "u"],
        "_kg": [0, 0, 0, 0],
    }
).cast(changes_schema(COUNTS))


@pytest.mark.parametrize("kept_from", [1, 2, 3, 100])
def test_a_state_table_and_later_changes_make_the_index(tmp_path, kept_from):
    index = disk_index(tmp_path, bounds=Bounds(1, kept_from))
    index.load(STATE)
    assert index.rows(["a", "b"]) == [Row((1,), 1, None), Row((2,), 1, (7,))]
    index.load(CHANGES)
    assert index.rows(["a", "b", "c"]) == [Row((9,), 3, (8,)), None, Row((3,), 2, None)]
    index.loaded(5)
    assert index.last_txid == 5
    index.close()


def test_an_empty_table_and_the_string_layouts_of_other_readers_are_loaded(index):
    index.load(state_schema(COUNTS).empty_table())
    assert (index.rows(["a"]), index.last_txid) == ([None], 0)
    words = pa.array(["a"], pa.string_view())
    index.load(pa.table({"word": words, "n": [1], "_txid": [1], "_prev": [{"n": 3}], "_kg": [0]}))
    assert index.rows(["a"]) == [Row((1,), 1, (3,))]


def test_a_state_without_key_has_one_row(tmp_path):
    state = KeyedState("total", key={}, value={"n": int})
    bench = Bench(state, disk_index(tmp_path, state, Bounds(1, 1)))
    bench.commit(1, lambda h: h.update((), lambda old: add(old, 5)))
    bench.commit(2, lambda h: h.update((), lambda old: add(old, 5)))
    bench.index.flush()
    again = StateIndex(state)
    again.resume(bench.index._disk)
    assert again.rows([()]) == bench.index.rows([()]) == [Row((10,), 2, (5,))]


@pytest.mark.parametrize("kept_from", [1, 10_000])
def test_every_type_survives_a_round_trip_through_tables_and_disk(tmp_path, kept_from):
    draw = seeded()
    bench = Bench(WIDE)
    for txid in (1, 2):
        bench.commit(txid, lambda h: h.put_many(dict(wide_rows(draw, 200))), publish=False)
    changes = bench.group.changes(1, 2)
    bench.group.apply(2)
    keys = list(bench.index._cache.rows())
    loaded = disk_index(tmp_path / "loaded", WIDE, Bounds(1, kept_from))
    loaded.load(changes)
    applied = disk_index(tmp_path / "applied", WIDE, Bounds(1, kept_from, behind=7))
    apply(applied, dict(zip(keys, bench.index.rows(keys), strict=True)))
    for other in (loaded, applied):
        assert repr(other.rows(keys)) == repr(bench.index.rows(keys))
        other.flush()
        assert other._cache.complete == (kept_from > 1)
        if not other._cache.complete:  # a complete cache never reads the disk
            again = StateIndex(WIDE)
            again.resume(other._disk)
            assert repr(again.rows(keys)) == repr(bench.index.rows(keys))
        other.close()


def test_the_disk_is_not_read_while_all_keys_are_in_memory(tmp_path):
    index = disk_index(tmp_path, bounds=Bounds(memory=1 << 20, kept_from=4))
    apply(index, counted_rows(1000))
    index.flush()
    index._disk.close()
    assert index._cache.complete
    assert index.rows(["w999", "new"]) == [Row((999,), 1, None), None]


def test_memory_is_bounded_and_rows_read_for_an_update_are_not_cached(tmp_path):
    index = disk_index(tmp_path, bounds=Bounds(memory=100_000, kept_from=4, behind=500))
    for n in range(100):
        apply(index, {f"w{n * 100 + i}": Row((i,), n + 1, None) for i in range(100)})
    assert not index._cache.complete
    assert len(index._cache) + len(index._behind[0]) < 1_500
    assert index.rows(["w0", "w9999", "w10000"]) == [Row((0,), 1, None), Row((99,), 100, None), None]
    index.close()
    index = disk_index(tmp_path / "update", bounds=Bounds(memory=2_000, kept_from=4, behind=1))
    apply(index, counted_rows(100))
    index.flush()
    index._cache.forget()
    assert index.rows(["w7", "new"], keep=False) == [Row((7,), 1, None), None]
    assert len(index._cache) == 0
    assert index.rows(["w7", "new"]) == [Row((7,), 1, None), None]
    assert len(index._cache) == 1
    index.close()


KEYS = list(words(0, 30))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.lists(st.sampled_from(KEYS), min_size=1, unique=True)),
        st.tuples(st.just("remove"), st.lists(st.sampled_from(KEYS), min_size=1, unique=True)),
        st.tuples(st.sampled_from(["flush", "again", "damage"]), st.just([])),
    ),
    max_size=40,
)


@given(steps=STEPS)
@settings(max_examples=20, deadline=None)
def test_the_index_behaves_like_a_dictionary(steps, tmp_path_factory):
    path = tmp_path_factory.mktemp("index")
    model: dict = {}

    def refill(disk):
        disk.put(model)
        disk.note(0)

    index = disk_index(path, refill=refill)
    for txid, (step, keys) in enumerate(steps, start=1):
        if step == "put":
            rows = {key: Row((txid,), txid, model[key][0] if key in model else None) for key in keys}
            model.update(rows)
            apply(index, rows)
        elif step == "remove":
            for key in keys:
                model.pop(key, None)
            apply(index, dict.fromkeys(keys))
        elif step == "flush":
            index.flush()
        elif step == "damage" and index._disk is not None:
            index._disk.close()
        elif step == "again" and index._disk is not None:
            index.flush()
            disk, index._disk = index._disk, None
            index = disk_index(path, refill=refill)
            index.resume(disk)
        assert index.rows(KEYS) == [model.get(key) for key in KEYS]
    index.close()


def test_concurrent_readers_see_a_key_before_or_after_an_update(tmp_path):
    """Concurrent readers never see the value of a key decrease while writers only increase it."""
    index = disk_index(tmp_path, bounds=Bounds(memory=3_000, kept_from=4, behind=20))
    keys = list(words(0, 200))
    apply(index, {key: Row((0,), 1, None) for key in keys})
    faults, done = [], threading.Event()

    def read():
        seen = dict.fromkeys(keys, 0)
        while not done.is_set():
            for key, row in zip(keys, index.rows(keys), strict=True):
                if row is None or row[1] < seen[key]:
                    faults.append((key, row, seen[key]))
                else:
                    seen[key] = row[1]

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    draw = random.Random(5)
    for txid in range(2, 80):
        apply(index, {key: Row((txid,), txid, None) for key in draw.sample(keys, 20)})
    done.set()
    for reader in readers:
        reader.join()
    assert faults == []
    index.close()


class Full:
    """A fake disk index that rejects writes while it is full."""

    full = True

    def __init__(self):
        self.rows, self.last = {}, None
        self.sync = lambda: None

    def put(self, rows, rest):
        if self.full:
            msg = "index: cannot be written: no space left on device"
            raise TxstormError(msg)
        self.rows.update(rows)

    def note(self, last):
        self.last = last

    def get(self, keys):
        return [self.rows.get(key) for key in keys]


def test_rows_that_cannot_be_written_stay_in_memory_up_to_a_limit(caplog):
    disk = Full()
    index = StateIndex(COUNTS, lambda: disk, bounds=TINY)
    rows = counted_rows(25)
    for key in list(rows)[:24]:
        apply(index, {key: rows[key]})
    assert index.rows(list(rows))[:24] == list(rows.values())[:24]
    assert caplog.text.count("no space left") == 1
    with pytest.raises(BlockedError, match=r"25 rows wait to be written.*no space left.*nothing is lost"):
        apply(index, {"w24": rows["w24"]})
    disk.full = False
    index.flush()
    assert (len(disk.rows), disk.last) == (25, 1)
    assert index.rows(list(rows)) == list(rows.values())


def test_without_an_index_directory_the_state_stays_in_memory_and_a_closed_index_rejects_reads(tmp_path, caplog):
    (tmp_path / "index").write_text("a file")
    index = disk_index(tmp_path / "index")
    apply(index, counted_rows(100))
    assert index._cache.complete
    assert index.rows(["w99"]) == [Row((99,), 1, None)]
    assert "stays in memory" in caplog.text
    index = disk_index(tmp_path / "closed")
    apply(index, counted_rows(100))
    index.close()
    index._cache.forget()
    with pytest.raises(StoppedError, match="state 'counts': its index is closed"):
        index.rows(["w0"])
    assert stores(tmp_path / "closed").find(1).last == 1
