"""Collections per key: appends, ordered range scans, range removals, and the rules common to all kinds of state."""

import random
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal

import handle_cases
import numpy as np
import pyarrow as pa
import pytest
from keyed_cases import EVENTS, begun, opened
from runs import ended
from seeded import seeded
from watched import Gathering

from txstorm import CollectionState, Committer, TransactionalTopologyBuilder
from txstorm.errors import StateError
from txstorm.spouts import MemoryTransactionalSpout
from txstorm.state.collections import CollectionGroup
from txstorm.state.index.collection_index import CollectionIndex
from txstorm.storage.rows.schema import changes_schema

VISITS = CollectionState("visits", key={"user": str, "shop": int}, order={"at": datetime}, value={"n": int})
AT = datetime(2024, 1, 1, tzinfo=UTC)


class Bench(handle_cases.Bench):
    """Test bench of a collection state; the rows of its commits are in the index, or not yet published."""

    def __init__(self, state, publish=True):
        self.index, self.publish = CollectionIndex(state), publish
        self.group = CollectionGroup(state, self.index)

    def commit(self, txid, work):
        return super().commit(txid, work, self.publish)


@pytest.fixture(params=[True, False], ids=["published", "unpublished"])
def bench(request):
    """Return a function that creates a bench."""
    return lambda state: Bench(state, request.param)


class Plain:
    """Reference model of a collection state: the current rows of each key, in order."""

    def __init__(self):
        self.rows = {}

    def scan(self, key, start, end, limit=None, reverse=False):
        there = [row for row in self.rows.get(key, []) if start <= row[0] <= end]
        return there[::-1][:limit] if reverse else there[:limit]


@pytest.mark.parametrize("run", range(2))
def test_any_reads_and_writes_match_the_model(bench, run):
    draw, plain, made = seeded(), Plain(), bench(VISITS)
    keys = [("ann", 1), ("ann", 2), (None, 1)]
    for txid in range(1, 9):
        handle = made.open(txid)
        for _ in range(12):
            key, day = draw.choice(keys), draw.randrange(-20, 20)
            start, end = (AT + timedelta(day), AT + timedelta(day + draw.randrange(12)))
            if draw.random() < 0.25:
                gone = plain.scan(key, start, end)
                plain.rows[key] = [row for row in plain.rows.get(key, []) if row not in gone]
                assert handle.remove(key, start, end) == len(gone)
            else:
                rows = [(AT + timedelta(draw.randrange(-20, 20)), draw.choice([None, 10 * txid])) for _ in range(5)]
                handle.append_many([(key, *row) for row in rows])
                plain.rows[key] = sorted([*plain.rows.get(key, []), *rows], key=lambda row: row[0])
            limit, reverse = draw.choice([None, 1, 2, 5, 50]), draw.random() < 0.5
            assert handle.scan(key, start, end, limit=limit, reverse=reverse) == plain.scan(
                key, start, end, limit, reverse
            )
            found = handle.scan_table(keys, start, end)
            expected = [(*key, at, n) for key in keys for at, n in plain.scan(key, start, end)]
            assert list(zip(*(column.to_pylist() for column in found), strict=True)) == expected
            every = handle.scan_table(None, start, end)
            assert in_parts(handle, every.column_names, start, end) == rows_of(every)
        made.commit(txid, lambda h: None)


def rows_of(table):
    return sorted(map(repr, zip(*(column.to_pylist() for column in table.columns), strict=True)))


def in_parts(handle, names, start=None, end=None):
    parts = handle.scan_parts(list, start, end)
    assert all(part.column_names == names for part in parts)
    return sorted(row for part in parts for row in rows_of(part))


def test_parts_read_from_files_have_each_row_once(tmp_path, monkeypatch):
    """Also those that are in memory, or unpublished, at that time; none below the bound, and none removed."""
    monkeypatch.setattr("txstorm.state.index.collection_index.MEMORY", 1)
    SEEN.clear()
    spout = MemoryTransactionalSpout({0: [(i,) for i in range(60)]}, ["n"], take=1)
    builder = TransactionalTopologyBuilder("t", "numbers", spout)
    builder.set_bolt("keep", KeepsVisits(seeded().random())).global_grouping("numbers")
    settings = {"max_group_txids": 3, "max_spout_pending": 5, "compact_on_stop": False}
    for last in (15, 30):  # the second start reads what the first one has left
        ended(builder.build_topology(), tmp_path, settings=settings, until_txid=last)
    assert set(SEEN) == set(range(1, 31))


SEEN = []


class KeepsVisits(Gathering, Committer):
    """Appends, removes and evicts at random, and compares both ways to read."""

    def __init__(self, seed):
        self.visits, self.seed = VISITS, seed

    def finish_batch(self):
        txid, handle = self.attempt.txid, self.context.collection("visits")
        draw, day = random.Random(f"{self.seed}/{txid}"), timedelta(txid)
        handle.append_many([(("ann", k % 3), AT + day * draw.randrange(2), 10 * txid) for k in range(200)])
        if txid % 7 == 0:
            handle.evict_before(AT + timedelta(txid // 2))
        if txid > 15 and draw.random() < 0.2:
            handle.remove(("ann", 1), AT, AT + day / 2)
        every = handle.scan_table(None, AT, AT + day)
        assert in_parts(handle, every.column_names, AT, AT + day) == rows_of(every)
        SEEN.append(txid)


def test_a_scanned_table_has_the_appended_columns(bench):
    kinds = {"s": str, "i": int, "f": float, "t": bool, "y": bytes, "d": date, "m": Decimal, "w": pa.int16(),
             "l": pa.list_(pa.int64()), "r": pa.struct([("x", pa.string())]), "g": pa.float32(), "at2": datetime}  # fmt: skip
    wide = CollectionState("wide", key={"k": str, "n": int}, order={"at": pa.int32()}, value=kinds)
    full = ("ä", -1, 0.5, True, b"\0", date(1905, 1, 1), Decimal("1.5"), -7, [1, 2], {"x": "y"}, 0.25, AT)
    rows = [(("a", i % 2), 5 - i, *full[:j], None, *full[j + 1 :]) for i, j in enumerate(range(len(full)))]
    rows += [(("a", 7), 1, *full), (("a", 7), 0, "", 0, -0.0, False, b"x" * 300, *full[5:])]
    made = bench(wide)
    made.commit(1, lambda h: h.append_many(rows))
    keys = [("a", 7), ("a", 1), ("b", 0), ("a", 0), ("a", 7)]
    for read in (lambda h: None, lambda h: [h.append(("a", 1), 0, *full), h.remove(("a", 0), -3)]):
        handle = made.open(2)
        read(handle)
        table = handle.scan_table(keys, -4, 4)
        found = handle.scan_many(keys, -4, 4)
        expected = [(*key, *row) for key in dict.fromkeys(keys) for row in found.get(key, [])]
        assert list(zip(*(column.to_pylist() for column in table), strict=True)) == expected
        assert table.schema.equals(
            pa.schema([(name, changes_schema(wide).field(name).type) for name in table.schema.names])
        )
        assert table.column_names == ["k", "n", "at", *kinds]
    other = Bench(wide)
    other.commit(1, lambda h: h.append_batch(table))
    assert other.open(2).scan_table(keys).equals(table)
    assert other.open(2).scan_table([("x", 0)]).num_rows == 0
    assert other.open(2).scan_table([]).column_names == table.column_names


def test_times_are_ordered_by_instant_across_time_zones(bench):
    made = bench(VISITS)
    noon = datetime(2024, 5, 1, 12, tzinfo=UTC)
    east = timezone(timedelta(hours=9))
    times = [noon, noon.replace(hour=13).astimezone(east), datetime(1905, 1, 1, tzinfo=UTC), noon - timedelta(0, 0, 1)]
    made.commit(1, lambda h: h.append_many([(("ann", 7), at, n) for n, at in enumerate(times)]))
    handle = made.open(2)
    assert handle.scan(("ann", 7)) == [(times[2], 2), (times[3], 3), (noon, 0), (noon + timedelta(hours=1), 1)]
    assert handle.scan(("ann", 7), noon.astimezone(east), noon) == [(noon, 0)]
    assert all(at.tzinfo is UTC for at, _ in handle.scan(("ann", 7)))
    assert handle.scan_many([("ann", 8), ("bob", 7)]) == {}


def test_values_read_are_copies(bench):
    made = bench(CollectionState("lists", key={"k": int}, order={"at": int}, value={"v": pa.list_(pa.int64())}))
    made.commit(1, lambda h: h.append(1, 1, [1]))
    made.open(2).scan(1)[0][1].append(2)
    assert made.open(2).scan(1) == [(1, [1])]


@pytest.mark.parametrize(("places", "bound"), [((4, 2), 2), ((4, 4), 4), ((4, None), 0), ((None, None), 0)])
def test_the_lowest_place_that_the_tasks_give_is_the_bound_if_all_give_one(places, bound):
    made = Bench(EVENTS)
    made.commit(1, lambda h: h.append_many([("a", at, "k", 1) for at in range(6)]))
    for task, place in enumerate(places):
        handle = made.open(2, task)
        handle.tasks = len(places)
        if place is not None:
            handle.evict_before(place)
    made.group.end_txid(2)
    assert [at for at, *_ in made.open(3).scan("a")] == list(range(bound, 6))


def test_an_eviction_writes_one_change_row_however_many_rows_it_evicts(bench):
    made = bench(EVENTS)
    made.commit(1, lambda h: h.append_many([(user, at, "k", 1) for user in ("a", None) for at in range(50)]))
    handle = made.open(2)
    handle.evict_before(40)
    handle.evict_batch(pa.table({"user": ["a", None, "a"], "at": [45, 48, 43]}))
    made.group.end_txid(2)
    rows = made.group.changes(2, 2).select(["user", "at", "_seq", "kind", "n", "_txid", "_prev", "_op"]).to_pylist()
    nothing = {"_seq": -1, "kind": None, "n": None, "_txid": 2, "_prev": None}
    assert rows == [
        {"user": None, "at": 40, "_op": "a", **nothing},
        {"user": "a", "at": 45, "_op": "e", **nothing},
        {"user": None, "at": 48, "_op": "e", **nothing},
    ]
    scanned = made.open(3).scan_many(("a", None)).items()
    assert {key: [at for at, *_ in rows] for key, rows in scanned} == {"a": [45, 46, 47, 48, 49], None: [48, 49]}


@pytest.mark.parametrize(
    "work",
    [
        lambda h: [h.evict_before(5), h.evict_before(4, "a"), h.append("a", 1, "late", 1)],
        lambda h: [h.append("b", 9, "k", 1), h.remove("b")],
    ],
    ids=["evictions of nothing", "a row appended and removed"],
)
def test_a_txid_that_leaves_all_as_it_was_writes_nothing(work):
    made = Bench(EVENTS)
    made.commit(1, lambda h: [h.append("a", 9, "k", 1), h.evict_before(5)])
    made.commit(2, work)
    assert made.group.changes(2, 2) is None


def test_the_last_rows_at_or_before_a_place(bench):
    made = bench(EVENTS)
    made.commit(1, lambda h: h.append_many([(user, at, "k", i) for user in "ab" for i, at in enumerate((1, 5, 5, 9))]))
    handle = made.open(2)
    handle.append("b", 3, "own", 0)
    table = handle.scan_table(["b", "a", "c"], end=5, last=2)
    assert [(row["user"], row["at"], row["n"]) for row in table.to_pylist()] == [
        ("b", 5, 1), ("b", 5, 2), ("a", 5, 1), ("a", 5, 2)]  # fmt: skip
    keys = pa.table({"user": ["b", "b"]})
    assert handle.scan_table(keys, end=4, last=9)["at"].to_pylist() == [1, 3]
    handle.append("d", -(2**63), "first", 1)
    assert handle.scan("d", np.int64(-(2**63)), np.int64(0)) == [(-(2**63), "first", 1)]


def test_rows_have_the_same_numbers_in_any_replay_and_appended_as_a_batch():
    tables = []
    for tasks in (1, 2):
        made = Bench(EVENTS)
        for number, user in enumerate("aabba"):
            made.open(1, task=ord(user) % tasks).append(user, 1, "k", number)
        made.group.end_txid(1)
        tables.append(made.group.changes(1, 1).sort_by([("user", "ascending"), ("_seq", "ascending")]).to_pylist())
    assert tables[0] == tables[1]
    assert [row["_seq"] - (1 << 24) for row in tables[0]] == [0, 1, 2, 0, 1]
    rows = [(("ann", 1), datetime(2024, 1, 1, tzinfo=UTC), 3), (("bob", 2), datetime(1950, 1, 1, tzinfo=UTC), None)]
    columns = {
        "n": pa.array([n for _, _, n in rows], pa.int32()),
        "at": pa.array([at for _, at, _ in rows], pa.timestamp("ms", tz="Asia/Tokyo")),
        "user": pa.array([key[0] for key, _, _ in rows]).dictionary_encode(),
        "shop": pa.chunked_array([[1], [2]]),
    }
    made = [Bench(VISITS) for _ in range(3)]
    made[0].commit(1, lambda h: h.append_many(rows))
    made[1].commit(1, lambda h: h.append_batch(pa.table(columns)))
    made[2].commit(1, lambda h: [h.append_batch(pa.table(columns).slice(i, 1)) for i in (0, 2, 1)])
    tables = [one.group.changes(1, 1) for one in made]
    assert tables[1] == tables[0]
    assert tables[2] == tables[0]


def test_collections_are_found_by_keys_of_every_type():
    kinds = {"s": str, "i": int, "b": bool, "y": bytes, "t": datetime, "d": date, "m": Decimal, "w": pa.int16()}
    wide = CollectionState("wide", key=kinds, order={"at": pa.int32()}, value={"n": int})
    full = ("ä", -1, True, b"\0", AT.replace(year=1905), date(1905, 1, 1), Decimal("1.50"), -7)
    keys = [full, (None,) * len(kinds), *((*full[:1], i, *full[2:]) for i in range(60))]
    made = Bench(wide)
    made.commit(1, lambda h: h.append_many([(key, at, i) for i, key in enumerate(keys) for at in (3, -3)]))
    handle = made.open(2)
    every = {key: [(-3, i), (3, i)] for i, key in enumerate(keys)}
    assert handle.scan_many(keys) == every
    assert {key: handle.scan(key) for key in keys} == every
    assert handle.scan(full, -(2**31), 2**31 - 1) == every[full]


NULL = pa.array([None], pa.timestamp("us", tz="UTC"))
NO_TIME = "expected a value of the order column 'at', got None"


def visits(**columns):
    """Return one row of VISITS with these columns besides those of the key."""
    return pa.table({"user": ["a"], "shop": [1], **columns})


MISUSE = {
    "no order": (lambda h: h.append(("a", 1), None, 1), NO_TIME),
    "no time zone": (lambda h: h.append(("a", 1), AT.replace(tzinfo=None), 1), "expected a datetime with a time zone"),
    "another type of order": (lambda h: h.append(("a", 1), 7, 1), "order column 'at', .*expected datetime, got int 7"),
    "another type of key": (lambda h: h.append(("a", "1"), AT, 1), "key column 'shop', .*expected int, got str"),
    "another shape of key": (lambda h: h.append("a", AT, 1), "expected a key that is a tuple of 2"),
    "another type of value": (lambda h: h.append(("a", 1), AT, "x"), "value column 'n', .*expected int, got str"),
    "a value too few": (lambda h: h.append(("a", 1), AT), r"expected rows \(key, at, n\), got"),
    "no row at all": (lambda h: h.append_many([5]), r"expected rows \(key, at, n\), got 5"),
    "the wrong way round": (lambda h: h.scan(("a", 1), AT, AT - timedelta(1)), "expected a range with start <= end"),
    "removed the wrong way round": (lambda h: h.remove(("a", 1), AT, AT - timedelta(1)), "a range with start <= end"),
    "a limit of nothing": (lambda h: h.scan(("a", 1), limit=0), "expected a limit that is an int above 0, or None"),
    "a limit of text": (lambda h: h.scan_many([("a", 1)], limit="5"), "expected a limit that is an int .*got .*5"),
    "a table in reverse": (lambda h: h.scan_table([("a", 1)], AT, AT - timedelta(1)), "range with start <= end"),
    "a start of another type": (lambda h: h.scan(("a", 1), "now"), "start of a range .*expected datetime, got str"),
    "a naive end": (lambda h: h.remove(("a", 1), None, AT.replace(tzinfo=None)), "end of a range .*time zone"),
    "a key of another type": (lambda h: h.scan_many([("a", 1.5)]), "key column 'shop', .*expected int, got float"),
    "a batch without the order": (
        lambda h: h.append_batch(visits(n=[1])),
        r"append_batch expected one column 'at', got \['user', 'shop', 'n'\]",
    ),
    "a batch with a null in the order": (lambda h: h.append_batch(visits(n=[1], at=NULL)), NO_TIME),
    "a batch with naive times": (
        lambda h: h.append_batch(visits(n=[1], at=pa.array([0], pa.timestamp("us")))),
        "order column 'at'.*cast the column",
    ),
    "an eviction before nothing": (lambda h: h.evict_before(None), "expected a place of evict_before .*got None"),
    "an eviction before another type": (lambda h: h.evict_before(5), "place of evict_before .*expected datetime, got"),
    "an eviction of a key of another type": (lambda h: h.evict_before(AT, ("a", "b")), "'shop', .*expected int, got"),
    "no places": (lambda h: h.evict_batch(visits()), r"evict_batch expected one column 'at', got \['user', 'shop'\]"),
    "an eviction batch with a null": (lambda h: h.evict_batch(visits(at=NULL)), NO_TIME),
}


@pytest.mark.parametrize("name", MISUSE)
def test_misuse_raises_one_clear_error_and_writes_nothing(name):
    use, message = MISUSE[name]
    made = Bench(VISITS)
    with pytest.raises(StateError, match=rf"state 'visits'.*{message}") as caught:
        use(made.open(1))
    assert "counter[0], txid 1" in str(caught.value)
    made.group.end_txid(1)
    assert made.group.changes(1, 1) is None


def test_a_handle_works_in_finish_batch_only_and_each_kind_of_state_has_its_own(tmp_path):
    handle = Bench(EVENTS).group.handle("keep", 0, 1)
    for use in (
        lambda: handle.append("a", 1, "k", 1),
        lambda: handle.append_batch(pa.table({})),
        lambda: handle.scan("a"),
        lambda: handle.scan_many([]),
        lambda: handle.scan_table([]),
        lambda: handle.remove("a"),
        lambda: handle.evict_before(1),
        lambda: handle.evict_batch(pa.table({})),
    ):
        with pytest.raises(StateError, match="used outside finish_batch"):
            use()
    resources = begun(opened(tmp_path, create=True).group(1), 1, 0)
    with pytest.raises(StateError, match=r"state 'events' holds collections; ask for it with context.collection"):
        resources.state("count", 0, "events")
    with pytest.raises(StateError, match=r"state 'seen' holds one value per key; ask for it with context.state"):
        resources.collection("count", 0, "seen")
    with pytest.raises(StateError, match="'event' is not declared"):
        resources.collection("count", 0, "event")


@pytest.mark.parametrize("other", [lambda h: h.append("a", 2, "k", 1), lambda h: h.evict_before(1, "a")])
def test_two_tasks_changing_one_collection_fail_the_batch(other):
    made = Bench(EVENTS)
    made.open(1, 0).append("a", 1, "k", 1)
    other(made.open(1, 1))
    with pytest.raises(StateError, match=r"key \('a',\) was changed by 2 tasks .*fields_grouping .*\['user'\]"):
        made.group.end_txid(1)
    made.group.drop_from(1)
    made.open(1, 0).append("a", 1, "k", 1)
    made.open(1, 1).append("b", 1, "k", 1)
    made.group.end_txid(1)
    assert made.open(2).scan_many("ab") == {"a": [(1, "k", 1)], "b": [(1, "k", 1)]}


def test_too_many_rows_appended_to_one_collection_in_one_txid(monkeypatch):
    monkeypatch.setattr("txstorm.state.collections.COUNT_BITS", 1)
    with pytest.raises(StateError, match=r"key .*gets more than 2 rows in one txid"):
        Bench(EVENTS).open(1).append_many([("a", 1, "k", 1)] * 3)


@pytest.mark.parametrize("order", [{}, {"at": str}, {"at": float}, {"at": int, "to": int}, {"at": pa.timestamp("s")}])
def test_an_invalid_order_is_rejected(order):
    with pytest.raises(StateError, match=r"state 'x'.*order"):
        CollectionGroup(CollectionState("x", key={}, order=order, value={"n": int}), None)
