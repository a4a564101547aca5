"""Monoids: laws of the ready-made ones, states of bolts against plain Python, sketches bit by bit."""

import json
import random
from collections import Counter, defaultdict
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import strategies as st

from txstorm import Monoid, MonoidBolt, TransactionalTopologyBuilder, run
from txstorm.errors import InputError, TopologyFailed, TxstormError
from txstorm.monoids import (
    Count,
    CountMin,
    FrequentItems,
    HyperLogLog,
    Max,
    Mean,
    Min,
    Quantiles,
    SetUnion,
    Sum,
    Theta,
    TopN,
)
from txstorm.results.views import DeadLettersView
from txstorm.spouts import MemoryTransactionalSpout
from txstorm.testing import CheckFailed, check_monoid

NUMBERS = st.integers(-(2**40), 2**40)
TAGS = [(tag, n) for n in range(40) for tag in "abbcccdddd"[n % 10]]


@pytest.mark.parametrize(
    ("monoid", "values"),
    [
        (Sum(), NUMBERS),
        (Sum(Decimal), st.decimals(-1000, 1000, places=3)),
        (Sum(float), st.floats(-1e6, 1e6)),
        (Count(), NUMBERS),
        (Min(), NUMBERS),
        (Max(float), st.floats(allow_nan=False)),
        (Mean(), NUMBERS),
        (SetUnion(), st.one_of(NUMBERS, st.text(max_size=3))),
        (TopN(3), st.tuples(st.text("abcdef", min_size=1, max_size=2), NUMBERS)),
        (HyperLogLog(5), NUMBERS),
        (Theta(5), st.text(max_size=3)),
        (CountMin(0.1, 0.9), st.text(max_size=3)),
        (FrequentItems(3), st.text(max_size=3)),
        (Quantiles(8), st.floats(-1e6, 1e6)),
    ],
    ids=repr,
)
def test_laws_hold(monoid, values):
    check_monoid(monoid, values, examples=40)


class LastWins(Monoid):
    def empty(self):
        return None

    def merge(self, a, b):
        return a if b is None else b


class Minus(Sum):
    def merge(self, a, b):
        return a - b


class Appends(Monoid):
    def empty(self):
        return []

    def merge(self, a, b):
        a.extend(b)
        a.sort()
        return a


class Loses(SetUnion):
    def load(self, stored):
        return self.of(*stored[1:])


class ForgetsFirst(SetUnion):
    def merge_all(self, states):
        return super().merge_all(states[1:])


@pytest.mark.parametrize(
    ("monoid", "values", "message"),
    [
        (ForgetsFirst(), NUMBERS, r"merge_all\(\[a, b, c\]\) = merge\(merge\(a, b\), c\) does not hold"),
        (LastWins(), NUMBERS, r"LastWins: merge\(a, b\) = merge\(b, a\) does not hold for a = 0, b = 1: 1 and 0"),
        (Minus(), NUMBERS, r"merge\(empty\(\), a\) = a does not hold for a = -?1:"),
        (Appends(), st.tuples(st.lists(NUMBERS)), "changes its arguments"),
        (Loses(), NUMBERS, r"load\(dump\(a\)\)"),
    ],
)
def test_a_broken_law_is_shown_with_the_smallest_states(monoid, values, message):
    with pytest.raises(CheckFailed, match=message):
        check_monoid(monoid, values)


@pytest.mark.parametrize("monoid", [HyperLogLog(12), HyperLogLog(4), Theta(12), Theta(5)], ids=repr)
@pytest.mark.parametrize("distinct", [0, 1, 7, 8, 100, 400, 6000])
def test_any_order_and_tree_of_merges_gives_the_same_bytes(monoid, distinct):
    draw = random.Random(distinct)
    rows = [(f"user {i}",) for i in range(distinct)] * 2
    expected = monoid.fold(rows)
    for _ in range(5):
        draw.shuffle(rows)
        cuts = sorted(draw.randrange(len(rows) + 1) for _ in range(4))
        parts = [monoid.fold(rows[a:b]) for a, b in zip([0, *cuts], [*cuts, len(rows)], strict=True)]
        while len(parts) > 1:
            at = draw.randrange(len(parts) - 1)
            parts[at : at + 2] = [monoid.merge(*draw.sample(parts[at : at + 2], 2))]
        assert parts == [expected]
    error = 0.05 if monoid.lg_k == 12 else 1
    assert abs(monoid.value(expected) - distinct) <= error * distinct


def shown(handle, table):
    return [tuple(json.loads(v) if isinstance(v, str) and v[:1] in "[{" else v for v in row.values())
            for row in handle.state(table).to_pylist()]  # fmt: skip


def results(monoid, tmp_path, *, take, tasks, key="tag", rows=TAGS, engine="local", settings=None, **options):
    """Run a monoid bolt over the rows in two partitions; return its table, as plain values."""
    spout = MemoryTransactionalSpout([rows[::2], rows[1::2]], ["tag", "n"], take=take)
    builder = TransactionalTopologyBuilder("monoids", "spout", spout, 2)
    bolt = builder.set_bolt("bolt", MonoidBolt("found", monoid, key, **options), tasks)
    bolt.fields_grouping("spout", ["tag"]) if key else bolt.shuffle_grouping("spout")
    handle = run(builder.build_topology(), data_dir=tmp_path, engine=engine, available_now=True, settings=settings)
    handle.awaitTermination()
    return shown(handle, "found")


EXPECTED = {
    Sum(): lambda values: sum(values),
    Count(): len,
    Min(): min,
    Max(): max,
    Mean(): lambda values: {"sum": sum(values), "count": len(values)},
    SetUnion(): lambda values: sorted(set(values)),
}


@pytest.mark.parametrize("monoid", EXPECTED, ids=repr)
@pytest.mark.parametrize(("take", "tasks"), [(3, 1), (100, 3)])
def test_states_are_those_of_plain_python(monoid, take, tasks, tmp_path):
    by_tag = defaultdict(list)
    for tag, n in TAGS:
        by_tag[tag].append(n)
    expected = [(tag, EXPECTED[monoid](values)) for tag, values in sorted(by_tag.items())]
    for number, to_state in enumerate(["n", lambda row: monoid.of(row["n"])]):
        place = tmp_path / str(number)
        assert results(monoid, place, take=take, tasks=tasks, to_state=to_state) == expected


def test_fewer_tasks_take_over_the_states_of_those_that_are_gone(tmp_path):
    totals = []
    for tasks, end in ((5, 12), (2, 24), (3, 33), (1, len(TAGS))):
        spout = MemoryTransactionalSpout([TAGS[:end]], ["tag", "n"], take=4)
        builder = TransactionalTopologyBuilder("monoids", "spout", spout, 1)
        builder.set_bolt("sum", MonoidBolt("sum", Sum(), to_state="n"), tasks).shuffle_grouping("spout")
        handle = run(builder.build_topology(), data_dir=tmp_path, engine="local", available_now=True)
        handle.awaitTermination()
        rows = shown(handle, "sum")
        assert [instance for instance, _ in rows] == list(range(tasks))
        totals.append(sum(state for _, state in rows))
    assert totals == [sum(n for _, n in TAGS[:end]) for end in (12, 24, 33, len(TAGS))]


class Love(MonoidBolt):
    """Written as Hailstorm's code is."""

    fields = ("tag", "n")

    def emptyState(self):
        return 0

    def mergeFn(self, a, b):
        return a + b

    def tupleToStateConverter(self, tuple):
        return tuple["n"]

    def transformTupleFn(self, tuple, state):
        return (tuple["tag"], state)


@pytest.mark.parametrize("take", [1, 2, 5])
@pytest.mark.parametrize("tasks", [1, 2])
def test_the_tuple_after_100_emits_101(take, tasks, tmp_path):
    rows = [("#love", 100), ("#love", 1), ("#hate", 7), ("#love", 2), ("#hate", 1)]
    spout = MemoryTransactionalSpout([rows], ["tag", "n"], take=take)
    builder = TransactionalTopologyBuilder("love", "spout", spout, 1)
    for emit in ("tuple", "batch", None):
        bolt = Love(f"{emit}s", key="tag", emit=emit)
        builder.set_bolt(f"{emit}s", bolt, tasks).fields_grouping("spout", ["tag"])
    for emit in ("tuple", "batch"):
        seen = MonoidBolt(f"seen_{emit}", SetUnion(), "tag", to_state="n")
        builder.set_bolt(f"seen_{emit}", seen, 1).fields_grouping(f"{emit}s", ["tag"])
    handle = run(builder.build_topology(), data_dir=tmp_path, engine="local", available_now=True)
    handle.awaitTermination()
    assert (
        shown(handle, "tuples")
        == shown(handle, "batchs")
        == shown(handle, "Nones")
        == [("#hate", "8"), ("#love", "103")]
    )
    running = {"#love": [100, 101, 103], "#hate": [7, 8]}
    assert shown(handle, "seen_tuple") == [(tag, running[tag]) for tag in sorted(running)]
    ends: dict[str, set[int]] = defaultdict(set)
    for first in range(0, len(rows), take):
        for tag in {tag for tag, _ in rows[first : first + take]}:
            ends[tag].add(running[tag][Counter(tag for tag, _ in rows[: first + take])[tag] - 1])
    assert shown(handle, "seen_batch") == [(tag, sorted(ends[tag])) for tag in sorted(ends)]


@pytest.mark.parametrize(("counts", "topns", "take"), [(1, 1, 7), (2, 4, 1000)])
@pytest.mark.parametrize("n", [1, 3, 20])
def test_trending_tags(counts, topns, take, n, tmp_path):
    draw = random.Random(n)
    tags = [f"t{min(draw.randrange(1, 30), draw.randrange(1, 30)):02}" for _ in range(300)]
    builder = TransactionalTopologyBuilder(
        "trends", "tags", MemoryTransactionalSpout([tags[:150], tags[150:]], "tag", take), 2
    )
    builder.set_bolt("counts", MonoidBolt("counts", Count(), "tag"), counts).fields_grouping("tags", ["tag"])
    top = MonoidBolt("topn", TopN(n), to_state=("tag", "state"))
    builder.set_bolt("topn", top, topns).function_grouping("counts", lambda values: -int(values[0][1:]))
    builder.set_bolt("top", MonoidBolt("top", TopN(n), to_state="state"), 1).global_grouping("topn")
    handle = run(builder.build_topology(), data_dir=tmp_path, engine="local", available_now=True)
    handle.awaitTermination()
    expected = Counter(tags)
    assert shown(handle, "counts") == sorted(expected.items())
    best = sorted(expected.items(), key=lambda one: (-one[1], one[0]))[:n]
    assert shown(handle, "top") == [(0, [{"key": tag, "count": count} for tag, count in best])]


@pytest.mark.parametrize("way", ["columns", "merged", "tuple", "instances"])
@pytest.mark.parametrize("bad", ["x", 1.5, None])
def test_a_bad_record_becomes_one_letter_and_takes_nothing_along(way, bad, tmp_path):
    rows = [("a", 1), ("b", 2), ("b", bad), ("a", 3), ("b", 4), ("c", 5)]
    more: dict[str, Any] = {"to_state": "n"} if way != "merged" else {"to_state": lambda row: row["n"]}
    found = results(
        Sum(), tmp_path, take=9, tasks=2, key=() if way == "instances" else "tag", rows=rows,
        emit="tuple" if way == "tuple" else "batch", settings={"on_error": "dead_letter"}, **more,
    )  # fmt: skip
    if way == "instances":
        assert sum(state for _, state in found) == 15
    else:
        assert found == [("a", 4), ("b", 6), ("c", 5)]
    letters = DeadLettersView(tmp_path).to_pylist()
    assert [json.loads(one["record"]) for one in letters] == ([] if bad is None else [{"tag": "b", "n": bad}])


LARGE, FINE = Decimal("99999999999999999999"), Decimal("1E-19")
ODD: list[tuple[Any, list[Any]]] = [
    *((Sum(), [2**63, None]), (Min(), [2**63, None]), (Max(), [-(2**63) - 1])),
    (Sum(Decimal), [Decimal("1E+19"), Decimal("-0"), FINE, None]),
    (Min(Decimal), [Decimal("Infinity"), Decimal("1E+999999"), LARGE]),
    (Max(Decimal), [Decimal("NaN"), FINE, Decimal("1.50")]),
    *((Sum(float), [-0.0, 2**53 + 1, None]), (Min(float), [float("inf"), -0.0])),
]


@pytest.mark.parametrize(("monoid", "odd"), ODD, ids=str)
def test_all_ways_store_or_refuse_the_same(monoid, odd, tmp_path):
    """By columns, merged before they are sent, or tuple by tuple; together with another value, and by themselves."""
    ways: list[dict[str, Any]] = [
        {"to_state": "n"},
        {"to_state": lambda row: row["n"]},
        {"to_state": "n", "emit": "tuple"},
    ]
    for at, rows in enumerate([[("a", one), *more] for one in odd for more in ([], [("a", monoid.column(-1))])]):
        found = set()
        for number, way in enumerate(ways):
            try:
                found.add(str(results(monoid, tmp_path / f"{at}-{number}", take=9, tasks=1, rows=rows, **way)))
            except TxstormError:
                found.add("refused")
        assert len(found) == 1, (rows, found)


@pytest.mark.parametrize("emit", ["batch", "tuple"])
@pytest.mark.parametrize("stranger", [True, 1.0, "1"])
def test_a_key_of_another_type_is_not_merged_into_an_equal_one(emit, stranger, tmp_path):
    spout = MemoryTransactionalSpout([[(1, 5), (2, 6)], [(stranger, 7)]], ["k", "n"], take=9)
    builder = TransactionalTopologyBuilder("keys", "spout", spout, 2)
    builder.set_bolt("bolt", MonoidBolt("found", SetUnion(), {"k": int}, to_state="n", emit=emit)).global_grouping(
        "spout"
    )
    settings = {"on_error": "dead_letter"}
    handle = run(builder.build_topology(), data_dir=tmp_path, engine="local", available_now=True, settings=settings)
    handle.awaitTermination()
    assert shown(handle, "found") == [(1, [5]), (2, [6])]
    assert len(DeadLettersView(tmp_path).to_pylist()) == 1


def test_laws_are_tried_on_live_states(tmp_path):
    spout = MemoryTransactionalSpout([[("a", 1), ("a", 2)], [("a", 3), ("b", 4)]], ["tag", "n"], take=1)
    builder = TransactionalTopologyBuilder("laws", "spout", spout, 2)
    bolt = MonoidBolt("found", LastWins(), "tag", to_state="n")
    builder.set_bolt("bolt", bolt, 1).fields_grouping("spout", ["tag"])
    handle = run(
        builder.build_topology(), data_dir=tmp_path, engine="local", available_now=True, settings={"check_laws": 2}
    )
    with pytest.raises(
        TopologyFailed, match=r"component 'bolt': LastWins: merge\(a, b\) = merge\(b, a\) does not hold"
    ):
        handle.awaitTermination()
    assert handle.committed == 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MonoidBolt("t"), "give a monoid"),
        (lambda: MonoidBolt("1t", Sum()), "a name is a letter"),
        (lambda: MonoidBolt("t", 7), "expected a Monoid"),
        (lambda: MonoidBolt("t", Sum(), emit="all"), '"batch", "tuple" or None'),
        (lambda: Sum(str), "int, float, Decimal"),
        (lambda: TopN(0), "at least 1"),
        (lambda: TopN(3, list), "type of a column"),
        (lambda: HyperLogLog(3), "4 to 21"),
        (lambda: CountMin(2.0), "between 0 and 1"),
    ],
)
def test_bad_arguments(make, message):
    with pytest.raises(InputError, match=message):
        make()


@pytest.mark.parametrize(
    ("bolt", "tasks", "grouping", "message"),
    [
        (MonoidBolt("t", Sum(), "tga", to_state="n"), 1, "global", "no field 'tga' .did you mean 'tag'"),
        (MonoidBolt("t", Sum(), "tag", to_state="m"), 1, "global", "to_state: .* no field 'm'"),
        (MonoidBolt("t", Sum(), "tag"), 1, "global", "besides the key are n, more"),
        (MonoidBolt("t", Sum(), "tag", to_state="n"), 2, "shuffle", "use fields_grouping"),
        (MonoidBolt("t", Sum(), "tag", to_state="n", transform=lambda row, state: ()), 1, "global", "say with fields"),
        (MonoidBolt("t", Sum(), "tag", to_state="n", fields=["a"]), 1, "global", "both or neither"),
        (MonoidBolt("t", Sum(), "state", to_state="n"), 1, "global", "columns of its table"),
    ],
)
def test_bad_declarations(bolt, tasks, grouping, message):
    spout = MemoryTransactionalSpout([[("a", 1, 2)]], ["tag", "n", "more"])
    builder = TransactionalTopologyBuilder("bad", "spout", spout)
    builder.set_bolt("bolt", bolt, tasks).grouping("spout", grouping)
    with pytest.raises(Exception, match=message):
        builder.build_topology()
