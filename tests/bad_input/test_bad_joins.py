"""Bad input of sides and interval joins: one clear error each, at the call or when the topology is built (U7, U8)."""

from datetime import timedelta
from typing import Any

import pytest

from txstorm import Duration, TransactionalTopologyBuilder
from txstorm.errors import InputError
from txstorm.joins import IntervalJoin, Side
from txstorm.testing import FeedSpout

FIELDS = ("key", "ts", "id", "part")
TEN = Duration(10)


def side(stream: str = "l", **more: Any) -> Side:
    return Side("feed", stream, **{"key": "key", "time": "ts", **more})


def build(left: Side, right: Side, tasks: int = 1, group: Any = "key", **options: Any) -> Any:
    builder = TransactionalTopologyBuilder("t", "feed", FeedSpout({"l": FIELDS, "r": FIELDS, "x": FIELDS}))
    declarer = builder.set_bolt("join", IntervalJoin(left, right, **{"before": TEN, **options}), tasks)
    for stream in dict.fromkeys(("l", "r")):
        if group is None:
            declarer.shuffle_grouping("feed", stream)
        else:
            declarer.fields_grouping("feed", stream, [group])
    return builder.build_topology()


def joined(**options: Any) -> IntervalJoin:
    return IntervalJoin(side(), side("r"), **{"before": TEN, **options})


def built(left: Any = (), right: Any = (), **options: Any) -> Any:
    return build(side(**dict(left)), side("r", **dict(right)), **options)


CALLS = {
    "a component that is no name": (lambda: Side(7, key="k", time="t"), "component: expected a name, got 7"),  # type: ignore[arg-type]
    "no time": (lambda: side(time=None), "time is missing; name the field"),
    "no key": (lambda: side(key=[]), r"key: expected a field or a list of fields, got \[\]"),
    "the same key twice": (lambda: side(key=["a", "a"]), "key: expected different fields"),
    "another unit": (lambda: side(unit="h"), "unit: expected s, ms, us, got 'h'"),
    "a unit that is a list": (lambda: side(unit=["ms"]), r"unit: expected s, ms, us, got \['ms'\]"),
    "a negative lag": (lambda: side(lag=timedelta(seconds=-1)), "lag"),
    "partitions as text": (lambda: side(partition="part", partitions="p0"), "expected a list of partitions, got 'p0'"),
    "a number of partitions": (lambda: side(partitions=3), "partitions: expected a list"),
    "an unsupported column": (lambda: side(columns={"id": list}), "columns: 'id' has the unsupported type"),
    "the time as text": (lambda: side(columns={"ts": str}), "'ts' is the time; expected int or datetime, got string"),
    "no side": (lambda: IntervalJoin("l", side("r"), before=TEN), "left: expected a Side, got 'l'"),  # type: ignore[arg-type]
    "no before": (lambda: IntervalJoin(side(), side("r")), "before is missing; .* kept forever"),
    "inverted bounds": (lambda: joined(after=timedelta(milliseconds=-11)), "the bounds are inverted: .* negative sum"),
    "endless bounds": (lambda: joined(before=timedelta(10**7)), "before: expected a duration shorter than 9999 years"),
    "a cross join": (lambda: joined(how="cross"), "no cross join"),
    "a misspelt type": (lambda: joined(how="lefft"), "did you mean 'left'"),
    "nothing selected": (lambda: joined(select=[]), r"select: expected a list of 'stream:field', got \[\]"),
    "select as text": (lambda: joined(select="l:id"), "list of 'stream:field'"),
}


BUILDS: dict[str, Any] = {
    "an unknown stream": (lambda: build(side(), side("rr")), "the right side, stream 'rr' of 'feed', is not one of"),
    "an input that is no side": (lambda: build(side(), side("x")), "stream 'r' of 'feed', is none of its sides"),
    "an unknown key": (lambda: build(side(key="kee"), side("r")), "key: there is no field 'kee' .did you mean 'key'"),
    "an unknown time": (lambda: build(side(), side("r", time="t")), "time: there is no field 't'"),
    "an unknown id": (lambda: build(side(id="idd"), side("r")), "id: there is no field 'idd'"),
    "an unknown column": (lambda: build(side(columns={"x": int}), side("r")), "columns: there is no field 'x'"),
    "one stream twice": (lambda: build(side(), side()), "its sides are the same stream"),
    "no right partitions": (lambda: built(right={"partition": "part", "partitions": []}), "never reports a position"),
    "partitions without a field": (lambda: build(side(), side("r", partitions=["p"])), "never reports a position"),
    "grace on the left": (lambda: build(side(grace=TEN), side("r")), "grace is for the right side"),
    "another grouping": (lambda: build(side(), side("r"), 2, "id"), r"use fields_grouping\('feed', 'l', \['key'\]\)"),
    "a shuffle": (lambda: build(side(), side("r"), 2, None), "is grouped by shuffle, so rows of one key"),
    "keys of different length": (lambda: built({"key": ["key", "id"]}), "the keys of its sides have 2 and 1 fields"),
    "keys of different types": (
        lambda: build(side(columns={"key": int}), side("r", columns={"key": str})),
        "the types int64 and string, so none would match",
    ),
    "an unknown selected field": (lambda: built(select=["l:idd"]), "the side has no field 'idd'.*'id'"),
    "an unknown selected stream": (lambda: built(select=["q:id"]), "'q:id' names no side of the join"),
    "a field without stream": (lambda: build(side(), side("r"), select=["id"]), "expected 'stream:field'"),
    "a field twice": (lambda: build(side(), side("r"), select=["l:id", "l:id"]), "two fields 'l_id'; select each once"),
    "a right field of a semi join": (lambda: built(how="semi", select=["r:id"]), "the results have left fields only"),
}


@pytest.mark.parametrize("name", [*CALLS, *BUILDS])
def test_a_wrong_argument_is_refused_at_the_call_and_a_wrong_declaration_when_the_topology_is_built(name: str) -> None:
    """U8: no hidden defaults, and no join without bounds."""
    call, message = (CALLS | BUILDS)[name]
    with pytest.raises(InputError, match=message):
        call()


@pytest.mark.parametrize("how", ["right", "full"])
def test_a_side_that_follows_a_right_or_full_join_can_never_report_a_position(how: str) -> None:
    """U8: unmatched right rows have no left time, and may come at any time."""
    builder = TransactionalTopologyBuilder("t", "feed", FeedSpout({"l": FIELDS, "r": FIELDS, "x": FIELDS}))
    first = IntervalJoin(side(), side("r"), before=TEN, how=how, select=["l:key", "l:ts"])
    builder.set_bolt("first", first).fields_grouping("feed", "l", ["key"]).fields_grouping("feed", "r", ["key"])
    second = IntervalJoin(side("x"), Side("first", key="key", time="ts"), before=TEN)
    builder.set_bolt("second", second).fields_grouping("feed", "x", ["key"]).fields_grouping("first", ["key"])
    with pytest.raises(InputError, match="can never report a position: its component is a right or full join"):
        builder.build_topology()
