"""Equal keys are one key in everything that has keys, however they are written; values of other types are others."""

import ast
import math
import re
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import write_deltalake
from old_keys import Content, Count
from runs import ended
from seeded import seeded

import txstorm
from txstorm import Duration, TransactionalTopologyBuilder, bolts, keys
from txstorm.api.join_store import StoreRow
from txstorm.api.state import ARROW_TYPES
from txstorm.errors import InputError, StateError
from txstorm.joins import Deduplicator, IntervalJoin, JoinBolt, LookupJoin, MemoryStore, Side, StoreFeed, StoreJoin
from txstorm.results.windowed_components import component_windows
from txstorm.sinks import DeltaSink
from txstorm.spouts import MemoryTransactionalSpout
from txstorm.state.external.map_rows import key_text
from txstorm.stateful.memory import MemoryStateProvider
from txstorm.testing import FeedSpout, TopologyTestDriver
from txstorm.windows import WindowAggregate

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


class Colour(StrEnum):
    RED = "red"


class Mixed(str, Enum):  # noqa: UP042 - its str() is its name
    RED = "red"


class Level(IntEnum):
    ONE = 1


EQUAL = {
    "trailing zero": (Decimal("1.5"), Decimal("1.50"), Decimal(15)),
    "exponent": (Decimal("1E+2"), Decimal(100), Decimal("1E+3")),
    "zeros": (Decimal("-0"), Decimal("0.00"), Decimal("0.1")),
    "instants": (NOON, NOON.astimezone(timezone(timedelta(hours=5))), NOON + timedelta(seconds=1)),
    "enumeration": (Colour.RED, "red", "blue"),
    "mixed in": ("red", Mixed.RED, "Mixed.RED"),
    "numpy text": (np.str_("red"), "red", "blue"),
    "numpy int": (np.int64(1), Level.ONE, 2),
    "numpy bool": (np.bool_(True), True, False),
    "numpy bytes": (np.bytes_(b"a"), b"a", b"b"),
    "date": (date(2026, 3, 1), date(2026, 3, 1), date(2026, 3, 2)),
    "float zeros": (0.0, -0.0, 1.0),
    "float": (np.float64(1.5), 1.5, -1.5),
    "NaN": (math.nan, -float("nan"), math.inf),
    "decimal NaN": (Decimal("NaN"), Decimal("-NaN7"), Decimal("Infinity")),
    "huge": (Decimal("1E+999999999"), Decimal("10E+999999998"), Decimal("1E+999999998")),
    "tiny": (Decimal("1E-999999999"), Decimal("10E-1000000000"), Decimal("1E-999999998")),
}
"""Kind → two spellings of one key, and another key of the same type."""
FLOATS = ("float zeros", "float", "NaN")
UNTYPED = ("decimal NaN", "huge", "tiny")
"""Kinds that no typed column, or no state, takes as keys."""


def topology(kind: type, *, floats: bool, typed: bool, table: Path, spout: Any = None) -> Any:
    """Return a topology with all components that have keys, of all kinds of tables and stores.

    With a `spout`, a sink keeps the last value that each component emits, as text, and there is no store.
    """
    fields, store, ten = ("k", "ts", "id"), MemoryStore(), Duration.seconds(10)
    builder = TransactionalTopologyBuilder("t", "feed", spout or FeedSpout({"l": fields, "r": fields}))
    left, right = (Side("feed", name, key="k", time="ts", id="id") for name in "lr")
    join = JoinBolt("l", "k").join("r", "k", "l").select("l:id").with_timestamp_field("ts").with_tumbling_window(ten)
    made: dict[str, Any] = {
        "windows": Content().with_key("k").with_timestamp_field("ts").with_tumbling_window(ten),
        "once": Deduplicator(id="k", keep=timedelta(days=1)),
        "interval": IntervalJoin(left, right, before=ten, select=["l:id"]),
        "join": join,
        "fill": StoreFeed(right, store, retain=Duration.days(1)),
        "store": StoreJoin(left, store, before=ten, select=["l:id"]),
    }
    if not floats:
        made["count"] = Count()
    if typed:
        made["lookup"] = LookupJoin(left, table, on="k", select=["left:id"])
    if typed and not floats:
        made["typed"] = type("Typed", (Count,), {"key_type": kind})()
        made["sums"] = WindowAggregate({"k": kind}, n="count").with_timestamp_field("ts").with_tumbling_window(ten)
    if spout is not None:
        del made["fill"], made["store"]
        columns = {"of": str, "value": str}
        keep = builder.set_bolt("keep", DeltaSink("values", columns))
        for name in made:
            last = bolts.Map(lambda one, name=name: (name, str(one.values[-1])), *columns)
            builder.set_bolt(f"{name}-text", last).shuffle_grouping(name, "l" if name == "once" else "default")
            keep.shuffle_grouping(f"{name}-text")
    for name, bolt in made.items():
        declarer = builder.set_bolt(name, bolt, 2)
        for stream in {"interval": "lr", "join": "lr", "fill": "r"}.get(name, "l"):
            declarer.fields_grouping("feed", stream, ["k"])
    return builder.build_topology()


def check_components(one: Any, same: Any, other: Any, tmp_path: Path, *, apart: bool, typed: bool = True) -> None:
    """Check in all components that two spellings are one key, and `other` is not, in one transaction or `apart`."""
    plain = type(keys.plain(one))
    floats = plain is float
    if typed:
        column = pa.array([keys.plain(same), None], ARROW_TYPES[plain])
        write_deltalake(tmp_path / "table", pa.table({"k": column}))
    lefts = [[(one, 1000, "a")], [(same, 1000, "b"), (other, 1000, "c")]]
    with TopologyTestDriver(topology(plain, floats=floats, typed=typed, table=tmp_path / "table")) as driver:
        driver.commit(driver.feed({"l": [], "r": [(same, 1000, "x")]}))
        for rows in lefts if apart else [[*lefts[0], *lefts[1]]]:
            driver.commit(driver.feed({"l": rows, "r": []}))
        driver.commit(driver.end_of_input())
        for name in ("interval", "join", "store", *(["lookup"] if typed else [])):
            assert sorted(driver.emitted(name)) == [("a",), ("b",)], name
        assert sorted(ids for _, ids in driver.emitted("windows")) == [["a", "b"], ["c"]]
        assert sorted(row[2] for row in driver.emitted("once", stream="l")) == ["a", "c"]
        for name in [] if floats else ["count", "typed"] if typed else ["count"]:
            assert sorted(row[1] for row in driver.emitted(name)) == [1, 1, 2], name
        if typed and not floats:
            assert sorted(row[-1] for row in driver.emitted("sums")) == [1, 2]


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("kind", EQUAL)
def test_equal_keys_are_one_key_in_all_components(kind: str, apart: bool, tmp_path: Path) -> None:
    """Whether they come in one transaction or not; the other key stays another one."""
    one, same, other = EQUAL[kind]
    check_components(one, same, other, tmp_path, apart=apart, typed=kind not in UNTYPED)


FORMS: dict[str, tuple[Any, Any, Any]] = {
    "dictionary": ("a", "b", lambda column: column.dictionary_encode()),
    "repeated": ("a", "b", lambda column: pa.DictionaryArray.from_arrays(range(len(column)), column)),
    "runs": ("a", "b", pc.run_end_encode),
    "text view": ("a", "b", pa.string_view()),
    "large text": ("a", "b", pa.large_string()),
    "bytes view": (b"a", b"b", pa.binary_view()),
    "bytes of one size": (b"a", b"b", pa.binary(1)),
    "large bytes": (b"a", b"b", pa.large_binary()),
    "small ints": (1, 2, pa.int8()),
    "unsigned ints": (1, 2, pa.uint64()),
    "dictionary of ints": (1, 2, pa.dictionary(pa.int8(), pa.int64())),
    "small floats": (1.5, 2.5, pa.float32()),
    "days in ms": (NOON.date(), NOON.date() + timedelta(1), pa.date64()),
    "seconds": (NOON, NOON + timedelta(1), pa.timestamp("s", "America/New_York")),
    "nanoseconds": (NOON, NOON + timedelta(1), pa.timestamp("ns", "UTC")),
    "large decimals": (Decimal("1.5"), Decimal(2), pa.decimal256(70, 3)),
    "hundreds": (Decimal(100), Decimal(200), pa.decimal128(10, -2)),
}
"""Form of a column → two values, and the type of the column, or how it is made of one of the usual type."""


@pytest.mark.parametrize("form", FORMS)
def test_keys_in_columns_of_all_forms_are_the_same_keys(form: str, tmp_path: Path, monkeypatch) -> None:
    one, other, kind = FORMS[form]

    def emit(self: Any, attempt: Any, metadata: Any, collector: Any) -> None:
        if rows := self._context.payload:
            k, ts, ids = zip(*rows, strict=True)
            usual = pa.array(k, ARROW_TYPES[type(one)])
            made = (
                kind(usual) if callable(kind) else pa.array(k, kind) if kind.id != usual.type.id else usual.cast(kind)
            )
            collector.emit_batch(pa.record_batch({"k": made, "ts": ts, "id": ids}))

    monkeypatch.setattr("txstorm.testing.feed._FeedEmitter.emit_batch", emit)
    check_components(one, one, other, tmp_path, apart=False)


@pytest.mark.spark
@pytest.mark.parametrize("take", [1, 9])
def test_equal_keys_are_one_key_on_spark(spark: Any, take: int, tmp_path: Path) -> None:
    """In the same components, but for those with stores, whose keys are compared by the coordinator."""
    kind = seeded().choice([one for one in EQUAL if one not in (*FLOATS, *UNTYPED)])
    one, same, other = EQUAL[kind]
    plain = type(keys.plain(one))
    write_deltalake(tmp_path / "table", pa.table({"k": pa.array([keys.plain(same), None], ARROW_TYPES[plain])}))
    lefts, rights = [[(one, 1000, "a"), (same, 1000, "b"), (other, 1000, "c")]], [[(same, 1000, "x")]]
    rows = {
        name: MemoryTransactionalSpout(given, ["k", "ts", "id"], take)
        for name, given in zip("lr", (lefts, rights), strict=True)
    }
    made = topology(plain, floats=False, typed=True, table=tmp_path / "table", spout=txstorm.CompositeSpout(rows))
    found: dict[str, list[str]] = {}
    for row in ended(made, tmp_path / "data", "spark", end_of_input=True).sink("values").to_pylist():
        found.setdefault(row["of"], []).append(row["value"])
    joined, counted = ["a", "b"], ["1", "1", "2"]
    assert {name: sorted(values) for name, values in found.items()} == {
        "windows": ["['a', 'b']", "['c']"], "once": ["a", "c"], "interval": joined, "join": joined, "lookup": joined,
        "count": counted, "typed": counted, "sums": ["1", "2"],
    }, kind  # fmt: skip


def test_partitions_spelled_otherwise_hold_no_watermark_back() -> None:
    """Nor is a window found by one spelling of its key only."""
    ten = Duration.seconds(10)
    for kind in ("trailing zero", "exponent", "zeros", "float zeros", "decimal NaN"):
        one, same, other = EQUAL[kind]
        windows = Content().with_key("k").with_timestamp_field("ts").with_tumbling_window(ten)
        builder = TransactionalTopologyBuilder("t", "feed", FeedSpout({"l": ("k", "ts", "id")}))
        builder.set_bolt("windows", windows.with_partition_field("k")).fields_grouping("feed", "l", ["k"])
        with TopologyTestDriver(builder.build_topology()) as driver:
            for rows in ([(one, 1000, "a"), (other, 1000, "b")], [(same, 25_000, "c"), (other, 25_000, "d")]):
                driver.commit(driver.feed({"l": rows}))
            assert sorted(ids for _, ids in driver.emitted("windows")) == [["a"], ["b"]], kind
            for key in (one, same, str(one), str(same)):
                found = component_windows(driver.data_dir, "windows").buffered_tuples(key=[key])
                assert [row["values"]["id"] for row in found] == ["c"], (kind, key)


@pytest.mark.parametrize("kind", ["trailing zero", "exponent", "zeros", "instants", "float zeros", "texts"])
@pytest.mark.parametrize("bolt", ["frontier", "frontier of a join", "position"])
def test_partitions_that_an_older_version_named_otherwise_hold_nothing_back(kind: str, bolt: str, monkeypatch) -> None:
    one, same, other = ("1.5", "1.50", "2") if kind == "texts" else EQUAL[kind]  # such texts are two partitions
    sides = [Side("feed", of, key="id", time="ts", id="id", partition="k") for of in "lr"]
    window = WindowAggregate("id", n="count").with_tumbling_window(Duration(10)).with_timestamp_field("ts")
    made: Any = {
        "frontier": lambda: window.with_partition_field("k"),
        "frontier of a join": lambda: IntervalJoin(*sides, before=Duration(10)),
        "position": lambda: StoreFeed(sides[0], MemoryStore(), retain=Duration(10)),
    }[bolt]()
    builder = TransactionalTopologyBuilder("t", "feed", FeedSpout(dict.fromkeys("lr", ("k", "ts", "id"))))
    declarer = builder.set_bolt("bolt", made)
    for of in "lr" if isinstance(made, IntervalJoin) else "l":
        declarer.fields_grouping("feed", of, ["id"])
    with TopologyTestDriver(builder.build_topology()) as driver:
        with monkeypatch.context() as patch:
            patch.setattr("txstorm.windows.intake.name_of", str)
            driver.commit(driver.feed({of: [(same, 1000, "a"), (other, 1000, "b")] for of in "lr"}))
        driver.restart()
        driver.commit(driver.feed({of: [(one, 25_000, "c"), (other, 25_000, "d")] for of in "lr"}))
        assert (driver.emitted("bolt", stream=bolt.split()[0])[-1][0] > 20_000_000) == (kind != "texts")


def test_keys_of_different_declared_types_are_refused_at_the_build(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "table", pa.table({"k": pa.array([1])}))
    fields, ten = ("k", "j", "ts", "id"), Duration.seconds(10)

    def sides(*types: type) -> list[Side]:
        columns = [{"k": kind, "j": int} for kind in types]
        return [
            Side("feed", name, key=["j", "k"], time="ts", id="id", columns=one)
            for name, one in zip("lr", columns, strict=True)
        ]

    window = JoinBolt("l", "k").join("r", "j", "l").with_timestamp_field("ts").with_tumbling_window(ten)
    columns = {"k": str, "j": int, "ts": int, "id": str}
    for bolt in (
        IntervalJoin(*sides(int, Decimal), before=ten),
        window.with_columns(columns),
        LookupJoin(sides(float, int)[0], tmp_path / "table", on="k"),
    ):
        builder = TransactionalTopologyBuilder("t", "feed", FeedSpout({"l": fields, "r": fields}))
        declarer = builder.set_bolt("bolt", bolt)
        for stream in "l" if isinstance(bolt, LookupJoin) else "lr":
            declarer.global_grouping("feed", stream)
        with pytest.raises(InputError, match=r"key fields '.' and '.' have the types .* so none would match"):
            builder.build_topology()


@pytest.mark.parametrize("kind", EQUAL)
def test_equal_keys_have_one_text_and_one_hash(kind: str) -> None:
    """At a cost that is bounded by their length as written: an exponent of 10^9 would take minutes."""
    one, same, other = EQUAL[kind]
    store = MemoryStore()
    store.put_many([StoreRow(one, one, 1, {"n": 1}), StoreRow(same, same, 1, {"n": 2}), StoreRow(other, 0, 1, {})])
    assert [row.value for row in store.get_many([same], None, None)[same]] == [{"n": 1}]
    for make in (keys.text, keys.hash_value, lambda value: keys.row_text([value]), lambda value: keys.id_text([value])):
        assert make(one) == make(same) != make(other)
    assert type(keys.plain(one)) is type(keys.plain(same)) is type(keys.plain(other))
    if kind in FLOATS:
        return
    state = MemoryStateProvider().new_state("s")
    state.put(one, 1)
    state.put((one, "x"), 2)
    assert (state.get(same), state.get((same, "x")), state.get(other)) == (1, 2, None)
    assert key_text(one, "map") == key_text(same, "map")


def test_values_of_different_types_are_different_keys() -> None:
    given = [1, True, 1.0, Decimal(1), "1", b"1", date(1970, 1, 2), None, NOON]
    assert keys.canonical(["a", "bc"]) != keys.canonical(["ab", "c"])
    for make in (keys.text, keys.hash_value, lambda one: keys.row_text([one]), lambda one: keys.id_text([one, ""])):
        assert len({make(one) for one in given}) == len(given)


STORED = [
    *map(Decimal, ("1.50", "-0", "1E+2", "1E-400", "1E+399", "9" * 400, "NaN", "-Infinity")),
    *(1, True, 1.5, -0.0, math.nan, "red", "", b"x", None, date(2026, 3, 1), NOON),
]


def test_bytes_and_hashes_of_up_to_400_digits_are_those_of_commit_08151c43() -> None:
    assert blake2b(keys.canonical(STORED), digest_size=8).hexdigest() == "73e943fa683ed75b"
    assert keys.hash_values(STORED) == 10022675976953142136
    longer = [keys.canonical_value(Decimal(one))[1] for one in ("1E+400", "9" * 401, "-1E-401")]
    assert longer == [b"1E400", b"9" * 401 + b"E0", b"-1E-401"]


def test_texts_of_a_table_of_before_are_converted() -> None:
    parts = ["a,b\\", "=x", Decimal("1.50"), -0.0, 2**70, ""]
    for number in range(1, len(parts) + 1):
        stored = keys.id_text(parts[:number], keys.WRITTEN)
        assert stored is not None and keys.equal_id(stored, number) == keys.id_text(parts[:number])
    for one in parts:
        assert keys.equal_text(keys.text(one, keys.WRITTEN)) == keys.text(one)


def test_what_cannot_be_a_key_is_refused_with_what_can() -> None:
    for bad in ([1], {"a": 1}, 1j, NOON.replace(tzinfo=None), object(), "\ud800", 10**5000, np.longdouble(1)):
        for make in (keys.text, keys.canonical_value, lambda value: keys.row_text([value])):
            with pytest.raises(StateError, match=r"cannot be part of a key|no time zone|replace its lone surrogates"):
                make(bad)


ENCODES = {
    "keys.py": "texts and bytes of keys",
    "engine/arrow.py": "values between tasks",
    "engine/task/dead_letters.py": "values of a record",
    "engine/task/fingerprints.py": "values of tuples",
    "hailstorm/sinks.py": "values of tuples",
    "joins/delay/staged_rows.py": "values of rows",
    "joins/side_rows.py": "values of rows; of the plain form for keys",
    "joins/stores/row_text.py": "values of rows; of the plain form for keys",
    "stateful/key_values.py": "values of states",
    "stateful/table_state.py": "values of states",
    "windows/aggregates/partials.py": "values of tuples",
    "windows/buffer.py": "values of tuples",
    "windows/late.py": "values of tuples",
}
"""Modules that encode values as tagged text, with what; keys are encoded in the first one only."""


ROOMS = ("windows", "joins", "state", "stateful", "storage", "engine")
AS_TEXT = re.compile(r"(?:map\()?(?:str|repr)(?:\(|, )(?:keys?|units?|ids?|parts?|partitions?|names)\)")
"""A key, or name of a partition, as Python shows it: as it is written, unless only its beginning is, in a message."""


def test_no_other_module_encodes_keys() -> None:
    package, found = Path(txstorm.__file__).parent, set()
    for path in package.rglob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        shown = {node.value for node in nodes if isinstance(node, ast.Subscript)}
        for node in nodes:
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            if called in ("str", "repr", "map") and path.relative_to(package).parts[0] in ROOMS and node not in shown:
                assert not AS_TEXT.fullmatch(ast.unparse(node)), f"{path}:{node.lineno}: see keys.text, keys.name_of"
            if called in ("text_of", "tag", "tagged.text_of", "tagged.tag") and path.name != "tagged.py":
                found.add(path.relative_to(package).as_posix())
    assert found == ENCODES.keys()
