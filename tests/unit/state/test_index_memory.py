import random
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pyarrow as pa
import pytest
from handle_cases import COUNTS, Bench, add, apply

from txstorm.api.keys import key_group
from txstorm.api.state import KeyedState
from txstorm.state.index import MemoryIndex
from txstorm.state.schema import changes_schema, state_schema
from txstorm.state.semantics import Row


def test_apply_takes_rows_over_and_removes_keys():
    index = MemoryIndex(COUNTS)
    apply(index, {"a": Row((1,), 1, None), "b": Row((2,), 1, None)})
    apply(index, {"a": Row((5,), 2, (1,)), "b": None, "never": None})
    assert index.rows(["a", "b", "c"]) == [Row((5,), 2, (1,)), None, None]
    assert (index.size, index.last_txid) == (1, 2)
    assert dict(index.scan()) == {"a": Row((5,), 2, (1,))}


def test_a_state_table_and_later_changes_make_the_index():
    state = pa.table(
        {"word": ["a", "b"], "n": [1, 2], "_txid": [1, 1], "_prev": [None, {"n": 7}], "_kg": [0, 0]}
    ).cast(state_schema(COUNTS))  # fmt: skip
    changes = pa.table(
        {
            "word": ["a", "c", "b", "a"],
            "n": [9, 3, None, 8],
            "_txid": [3, 2, 3, 2],
            "_prev": [{"n": 8}, None, {"n": 2}, {"n": 1}],
            "_op": ["u", "u", "d", "u"],
            "_kg": [0, 0, 0, 0],
        }
    ).cast(changes_schema(COUNTS))
    index = MemoryIndex(COUNTS)
    index.load(state)
    assert index.rows(["a", "b"]) == [Row((1,), 1, None), Row((2,), 1, (7,))]
    index.load(changes)
    assert dict(index.scan()) == {"a": Row((9,), 3, (8,)), "c": Row((3,), 2, None)}
    assert index.last_txid == 3


def test_the_table_is_sorted_by_key_with_key_groups():
    index = MemoryIndex(COUNTS)
    apply(index, {"b": Row((2,), 3, (1,)), None: Row((0,), 1, None), "a": Row((None,), 2, (None,))})
    table = index.to_table(state_schema(COUNTS))
    assert table.schema == state_schema(COUNTS)
    assert table.to_pylist() == [
        {"word": None, "n": 0, "_txid": 1, "_prev": None, "_kg": key_group((None,))},
        {"word": "a", "n": None, "_txid": 2, "_prev": {"n": None}, "_kg": key_group(("a",))},
        {"word": "b", "n": 2, "_txid": 3, "_prev": {"n": 1}, "_kg": key_group(("b",))},
    ]


def test_an_empty_index_is_an_empty_table():
    table = MemoryIndex(COUNTS).to_table(state_schema(COUNTS))
    assert (table.num_rows, table.schema) == (0, state_schema(COUNTS))
    index = MemoryIndex(COUNTS)
    index.load(table)
    assert (index.size, index.last_txid) == (0, 0)


def test_a_state_without_key_has_one_row():
    state = KeyedState("total", key={}, value={"n": int})
    bench = Bench(state)
    bench.commit(1, lambda h: h.update((), lambda old: add(old, 5)))
    bench.commit(2, lambda h: h.update((), lambda old: add(old, 5)))
    table = bench.index.to_table(state_schema(state))
    assert table.to_pylist() == [{"n": 10, "_txid": 2, "_prev": {"n": 5}, "_kg": key_group(())}]
    again = MemoryIndex(state)
    again.load(table)
    assert again.rows([()]) == [Row((10,), 2, (5,))]


WIDE = KeyedState(
    "wide",
    key={"i": int, "s": str, "b": bytes, "t": bool, "at": datetime, "d": Decimal},
    value={"f": float, "f4": pa.float32(), "i1": pa.int8(), "l": pa.list_(pa.int64()),
           "st": pa.struct([("x", pa.string()), ("y", pa.list_(pa.timestamp("us", tz="UTC")))]), "dec": Decimal},
)  # fmt: skip


def wide_rows(draw: random.Random, count: int):
    def some(value):
        return None if draw.random() < 0.2 else value

    for i in range(count):
        at = datetime(1900, 1, 1, tzinfo=UTC) + timedelta(microseconds=draw.randrange(1 << 53))
        key = (some(i), some(draw.choice(["", "ß", "x" * 50])), some(draw.randbytes(3)), some(draw.random() < 0.5),
               some(at), some(Decimal(draw.randrange(10**30)).scaleb(-12)))  # fmt: skip
        struct = {"x": some("é"), "y": some([at, None])}
        yield key, {"f": some(draw.random()), "f4": some(draw.random()), "i1": some(draw.randrange(-128, 128)),
                    "l": some([1, None, draw.randrange(1 << 60)]), "st": some(struct),
                    "dec": some(Decimal(draw.randrange(10**20)).scaleb(-18))}  # fmt: skip


def test_every_type_survives_the_way_through_a_table():
    seed = random.randrange(1 << 32)
    print("seed", seed)
    draw = random.Random(seed)
    bench = Bench(WIDE)
    for txid in (1, 2):
        bench.commit(txid, lambda h: h.put_many(dict(wide_rows(draw, 200))), publish=False)
    changes = bench.group.changes(1, 2)
    bench.group.apply(2)
    from_changes, from_state = MemoryIndex(WIDE), MemoryIndex(WIDE)
    from_changes.load(changes)
    from_state.load(bench.index.to_table(state_schema(WIDE)))
    assert dict(from_changes.scan()) == dict(bench.index.scan()) == dict(from_state.scan())
    assert repr(sorted(map(repr, from_state.scan()))) == repr(sorted(map(repr, bench.index.scan())))
    groups = bench.index.to_table(state_schema(WIDE)).select([*WIDE.key, "_kg"]).to_pylist()
    assert all(row.pop("_kg") == key_group(tuple(_utc(value) for value in row.values())) for row in groups[:50])


def _utc(value):
    return value.replace(tzinfo=UTC) if isinstance(value, datetime) else value


def test_loading_accepts_the_string_layouts_of_other_readers():
    index = MemoryIndex(COUNTS)
    table = pa.table(
        {"word": pa.array(["a"], pa.string_view()), "n": [1], "_txid": [1], "_prev": [{"n": 3}], "_kg": [0]}
    )  # fmt: skip
    index.load(table)
    assert index.rows(["a"]) == [Row((1,), 1, (3,))]


def test_readers_see_each_key_before_or_after_an_apply():
    index = MemoryIndex(COUNTS)
    keys = [f"w{i}" for i in range(100)]
    apply(index, {key: Row((0,), 1, None) for key in keys})
    snapshot = index.scan()
    apply(index, dict.fromkeys(keys[:50]))
    assert (len(list(snapshot)), index.size) == (100, 50)


@pytest.mark.parametrize("order", [1, -1])
def test_the_table_does_not_depend_on_the_order_of_writes(order):
    index = MemoryIndex(COUNTS)
    for word in ["b", "a", "c"][::order]:
        apply(index, {word: Row((1,), 1, None)})
    assert index.to_table(state_schema(COUNTS))["word"].to_pylist() == ["a", "b", "c"]
