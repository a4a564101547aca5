"""Bad input of joins per window and look-ups: one clear error each, when they are declared, built or fed.

Tables that are lost or replaced during a run are in `tests/joins/test_lookup_joins.py`.
"""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from fed import fed_bolt

from txstorm import Duration, TransactionalTopologyBuilder, run
from txstorm.bolts import Map
from txstorm.errors import InputError, TopologyError, TxstormError
from txstorm.joins import JoinBolt, LookupJoin, Side
from txstorm.results.read import read_sink
from txstorm.sinks import DeltaSink
from txstorm.spouts import MemoryTransactionalSpout
from txstorm.testing import FeedSpout
from txstorm.topology.graph import Topology

TEN = Duration.seconds(10)


def windows(bolt: JoinBolt, tasks: int = 1, *, a: str = "k", b: str = "k", c: str | None = None) -> Topology:
    """Return a topology with `bolt` over the streams `a`, `b` and perhaps `c`, grouped by these fields."""
    spout = FeedSpout({"a": ("id", "k"), "b": ("id", "k", "x"), "c": ("id", "k"), "default": ("id", "k")})
    builder = TransactionalTopologyBuilder("t", "feed", spout)
    declarer = builder.set_bolt("w", bolt.with_tumbling_window(TEN), tasks)
    for stream, by in {"a": a, "b": b, "c": c}.items():
        if by == "all":
            declarer.all_grouping("feed", stream)
        elif by == "shuffle":
            declarer.shuffle_grouping("feed", stream)
        elif by is not None:
            declarer.fields_grouping("feed", stream, [by])
    return builder.build_topology()


def ab(**names: str) -> JoinBolt:
    return JoinBolt("a", "k", names=names).join("b", "k", "a")


def unwindowed() -> Topology:
    return fed_bolt("w", JoinBolt("a", "k"), {"a": ("id", "k")}).build_topology()


JOINS = {
    "no field": (lambda: JoinBolt("a", None), "JoinBolt: expected the name of the join field, .* got None"),
    "a field with its stream": (lambda: JoinBolt("a", "a:k"), "expected the name of the join field, without its str"),
    "a bad name": (lambda: JoinBolt("", "k"), "JoinBolt: stream '': a name is a letter"),
    "three names": (lambda: JoinBolt("a", "k", "b"), "JoinBolt: expected a stream and its join field, got 'a', 'k', "),
    "a stream joined twice": (lambda: ab().join("b", "id", "a"), "join: stream 'b' is joined already; join each"),
    "a stream joined to itself": (lambda: JoinBolt("a", "k").left_join("a", "k", "a"), "left_join: stream 'a' is joi"),
    "joined to one that comes later": (
        lambda: JoinBolt("a", "k").left_join("b", "k", "c").join("c", "k", "a"),
        "left_join: stream 'c' is not joined yet; join to one of those named before: a",
    ),
    "nothing selected": (lambda: ab().select(), r"select: expected names of fields, such as 'a, stream:b', got \(\)"),
    "an empty name": (lambda: ab().select("id,,k"), "select: expected names of fields between commas"),
    "a number selected": (lambda: ab().select(1), "select: expected names of fields"),
    "a reserved name": (lambda: JoinBolt("a", "k", names={"end": "window_e"}), "starts with 'window_'"),
    "a bad output stream": (lambda: ab().with_output_stream("1st"), "with_output_stream: stream '1st'"),
    "no window": (unwindowed, "'w': it declares no windows"),
    "a stream without input": (
        lambda: ab().join("d", "k", "a"),
        "'w': no input is the stream, or the default stream of the component, 'd'; subscribe to it",
    ),
    "an input that is not joined": (
        ab,
        "'w': its input, stream 'c' of 'feed', is not joined; join 'c', or do not subscribe to it",
        {"c": "k"},
    ),
    "an unknown join field": (
        lambda: JoinBolt("a", "kk").join("b", "k", "a"),
        "'w': stream 'a' has no join field 'kk' .did you mean 'k'..; it has id, k",
    ),
    "an unknown field": (lambda: ab().select("a:id, y"), "'w': select: no stream has 'y'; it has id, k, x"),
    "an unknown field of a stream": (lambda: ab().select("a:x"), "'w': select: 'a:x': no such field; it has id, k"),
    "an unknown stream": (
        lambda: ab().select("aa:k"),
        "'w': select: 'aa:k': there is no 'aa' .did you mean 'a'.* there are a, b, and window with start and end",
    ),
    "an unknown time": (lambda: ab().select("window:middle"), "there is no 'window' .*with start and end"),
    "a time called like a field": (
        lambda: ab(end="x").select("window:end, b:x"),
        "select: 'window:end' and 'b:x' would both be called 'x'",
    ),
    "a name of a time that is not selected": (lambda: ab(end="till").select("x"), "names: the results have no window:"),
    "a field twice": (lambda: ab().select("x, b:x"), "select: 'x' and 'b:x' would both be called 'b_x'; se"),
    "late tuples among the results": (
        lambda: ab().with_late_tuple_stream("default").with_timestamp_field("id"),
        "with_late_tuple_stream: the stream 'default' has the fields a_id, .*, late tuples have id, k, x; choose",
    ),
    "grouped by another field": (
        ab,
        "'w': its input 'feed', joined as 'b' by 'k', is grouped by fields id, so tuples of one key may get into "
        r"different tasks; use fields_grouping.'feed', 'b', \['k'\]",
        {"tasks": 2, "b": "id"},
    ),
    "not grouped": (ab, "joined as 'a' by 'k', is grouped by shuffle", {"tasks": 2, "a": "shuffle"}),
    "the first stream to all tasks": (
        ab,
        "'w': its first stream 'a' goes to all tasks, so each of them would emit the results",
        {"tasks": 2, "a": "all"},
    ),
}


@pytest.mark.parametrize("name", JOINS)
def test_a_wrong_join_per_window_is_refused(name: str) -> None:
    make, message, *grouped = JOINS[name]
    with pytest.raises(InputError, match=message) as refused:
        windows(make(), **dict(*grouped))
    assert "\n" not in str(refused.value) or isinstance(refused.value, TopologyError)


def test_one_task_or_a_stream_that_all_tasks_get_needs_no_grouping_by_key() -> None:
    windows(ab(), 1, a="shuffle", b="id")
    windows(ab(), 2, a="shuffle", b="all")
    windows(ab(), 2, a="k", b="all")
    windows(ab().with_key("id"), 2, a="id", b="id")


@pytest.fixture
def users(tmp_path: Path) -> Path:
    rows = {"id": [1, 2], "name": ["Ann", "Bob"], "at": pa.array([0, 0], pa.timestamp("us")), "tags": [["a"], ["b"]]}
    write_deltalake(tmp_path / "users", pa.table(rows))
    return tmp_path / "users"


def lookup(join: LookupJoin, tasks: int = 1, grouping: str = "shuffle", *streams: str) -> Topology:
    builder = TransactionalTopologyBuilder("t", "feed", FeedSpout({"s": ("n", "id"), "r": ("n", "id")}))
    declarer = builder.set_bolt("j", join, tasks)
    for stream in streams or ("s",):
        getattr(declarer, f"{grouping}_grouping")("feed", stream)
    return builder.build_topology()


S = ("feed", "s")
CALLS: dict[str, Any] = {
    "no stream": ({"left": None}, "left: expected a Side, a component"),
    "a table elsewhere": (
        {"uri": "s3://bucket/users"},
        "uri: expected the directory of a Delta table, or a file: URI of it, got 's3://bucket/users'",
    ),
    "no fields": ({"on": None}, "on: expected fields, or field .* column of the tabl"),
    "numbers for fields": ({"on": [1]}, "on: expected fields"),
    "an unknown type": ({"how": "full"}, "how: expected one of inner, left, semi, anti, got 'full'; rows of the table"),
    "nothing selected": ({"select": []}, "select: expected names"),
    "a refresh time without unit": ({"refresh": 5}, "refresh: expected a Duration or a timedelta, got 5"),
}
LOOKUPS: dict[str, Any] = {
    "no table": (
        {"uri": "no/such"},
        "the table cannot be read: .*no/such: expected a Delta table, found none; create it before",
    ),
    "another stream": ({"left": ("feed", "t")}, "no input is stream 't' of 'feed'; subscribe to it"),
    "a second input": (
        {},
        "its input, stream 'r' of 'feed', is not the one that it joins; leave it out",
        *(1, "shuffle", "s", "r"),
    ),
    "an input of all tasks": ({}, "stream 's' of 'feed' goes to all tasks, so each would emit the results", 2, "all"),
    "an unknown field": (
        {"on": {"idd": "id"}},
        "on: stream 's' of 'feed' has no field 'idd' .did you mean 'id'..; there are n, id",
    ),
    "an unknown column": ({"on": {"n": "nam"}}, "on: the table .* has no column 'nam' .did you mean 'name'"),
    "the key of a side, which the table does not have": (
        {"left": Side("feed", "s", key="n", time="id"), "on": None},
        "on: the table .* has no column 'n'",
    ),
    "list": ({"on": {"n": "tags"}}, "on: column 'tags' has type list<.*>, which cannot be a key; join by another one"),
    "times without zone": ({}, "select: column 'at' has times without time zone"),
    "an unknown selection": ({"select": ["table:n"]}, "select: there is no 'table:n'; there are id, name, at, tags"),
    "an unknown side": ({"select": ["users:id"]}, "select: 'users:id': expected left:field or table:column"),
    "a field twice": (
        {"select": ["name", "table:name"]},
        "select: field 'table_name' is selected 2 times; select it once",
    ),
    "columns of a semi join": (
        {"how": "semi", "select": ["n", "name"]},
        "select: a semi join has no fields of the table, such as 'name'",
    ),
}


@pytest.mark.parametrize("name", [*CALLS, *LOOKUPS])
def test_a_wrong_look_up_is_refused(name: str, users: Path) -> None:
    options, message, *where = {**CALLS, **LOOKUPS}[name]
    place = "'j': " if name in LOOKUPS else "^"
    with pytest.raises(InputError, match=f"{place}LookupJoin: {message}") as refused:
        lookup(LookupJoin(**{"left": S, "uri": users, "on": "id", **options}), *where)
    assert "\n" not in str(refused.value) or isinstance(refused.value, TopologyError)


def fed(bolt: Any, bad: Any, **settings: Any) -> Topology:
    """Return a topology whose second transaction has the tuple `c` with the key `bad`."""
    rows = [("a", 1), ("b", 2), ("c", bad), ("d", 1)]
    builder = TransactionalTopologyBuilder("t", "feed", MemoryTransactionalSpout([rows], ("n", "id"), take=2))
    builder.set_bolt("j", bolt).global_grouping("feed")
    builder.set_bolt("keep", DeltaSink("out", {"n": str})).global_grouping("j")
    return builder.set_settings({"retry_backoff": 0, **settings}).build_topology()


TUPLES = {
    "text as number": ("1", "field 'id'.* by which j joins, has values of several types|field 'id' has values of ty"),
    "a list": ([1], "field 'id', by which j joins, has values of several types|field 'id' has values of type"),
}


@pytest.mark.parametrize("name", TUPLES)
def test_a_key_that_cannot_be_looked_up_ends_the_run_and_nothing_is_lost(name: str, users: Path, tmp_path: Path):
    bad, message = TUPLES[name]

    def made(**settings: Any) -> Topology:
        return fed(LookupJoin("feed", users, on="id", select=["n", "name"]), bad, **settings)

    data = tmp_path / "data"
    with pytest.raises(TxstormError, match=message):
        run(made(), engine="local", data_dir=data, available_now=True).awaitTermination(120)
    assert read_sink(data, "out").to_pylist() == [{"n": "a", "_txid": 1}, {"n": "b", "_txid": 1}]


def test_a_join_field_that_cannot_be_a_key_names_the_tuple(tmp_path: Path) -> None:
    builder = TransactionalTopologyBuilder("t", "feed", MemoryTransactionalSpout([[("a", 1)]], ("n", "id")))
    builder.set_bolt("listing", Map(lambda row: (row["n"], [row["id"]]), "n", "k")).global_grouping("feed")
    builder.set_bolt("j", JoinBolt("listing", "k").with_tumbling_window(TEN)).global_grouping("listing")
    made = builder.build_topology()
    message = (
        r"j\[0\] raised StateError: list \[1\] cannot be part of a key; .* join field listing:k; it was given .*k=\[1\]"
    )
    with pytest.raises(TxstormError, match=message):
        run(made, engine="local", data_dir=tmp_path, end_of_input=True).awaitTermination(120)
