"""Equal keys are one key in everything that has keys, however they are written; values of other types are others."""

from __future__ import annotations

import ast
import math
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from old_keys import Content, Count

import txstorm
from txstorm import Duration, TransactionalTopologyBuilder, keys
from txstorm.api.join_store import StoreRow
from txstorm.api.state import ARROW_TYPES
from txstorm.errors import InputError, StateError
from txstorm.joins import Deduplicator, IntervalJoin, JoinBolt, LookupJoin, MemoryStore, Side, StoreFeed, StoreJoin
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


def topology(kind: type, *, floats: bool, typed: bool, table: Path) -> Any:
    """Return a topology with all components that have keys, of all kinds of tables and stores."""
    fields, store, ten = ("k", "ts", "id"), MemoryStore(), Duration.seconds(10)
    builder = TransactionalTopologyBuilder("t", "feed", FeedSpout({"l": fields, "r": fields}))
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
    for name, bolt in made.items():
        declarer = builder.set_bolt(name, bolt, 2)
        for stream in {"interval": "lr", "join": "lr", "fill": "r"}.get(name, "l"):
            declarer.fields_grouping("feed", stream, ["k"])
    return builder.build_topology()


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("kind", EQUAL)
def test_equal_keys_are_one_key_in_all_components(kind: str, apart: bool, tmp_path: Path) -> None:
    """Whether they come in one transaction or not; the other key stays another one."""
    one, same, other = EQUAL[kind]
    plain = type(keys.plain(one))
    floats, typed = kind in FLOATS, kind not in UNTYPED
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


def test_no_other_module_encodes_keys() -> None:
    package, found = Path(txstorm.__file__).parent, set()
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            if called in ("text_of", "tag", "tagged.text_of", "tagged.tag") and path.name != "tagged.py":
                found.add(path.relative_to(package).as_posix())
    assert found == ENCODES.keys()
