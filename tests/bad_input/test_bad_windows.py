"""Bad input of windows and stateful bolts: one clear error with component, tuple and remedy, and nothing is lost.

Wrong declarations are in `tests/windows/test_window_declarations.py`, and another form of windows than at the last
start in `tests/windows/test_window_starts.py`.
"""

import json
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from window_bolts import Emitting, Numbers

from txstorm import Count, Duration, TransactionalTopologyBuilder, WindowAggregate, run
from txstorm.errors import TopologyFailed, TxstormError
from txstorm.results.read import read_letters, read_sink
from txstorm.results.views import StateView
from txstorm.sinks import DeltaSink
from txstorm.spouts import MemoryTransactionalSpout
from txstorm.topology.graph import Topology

TEN = Duration.seconds(10)
NAIVE = datetime(2026, 1, 1)  # noqa: DTZ001 - that it is naive is the case
EVER = timedelta(days=1)


def new_ids(window: Any) -> tuple[str]:
    assert window.get()
    return ("".join(one["id"] for one in window.get_new()),)


Ids = partial(Emitting, "id", new_ids)
"""The ids that are new in a window, after reading all of it."""


def topology(bolt: Any, bad: Any = 12, tasks: int = 1, **settings: Any) -> Topology:
    """Return a topology whose second transaction has the tuple `c` with the timestamp `bad`."""
    rows = [("a", 1), ("b", 8), ("c", bad), ("d", 30)]
    builder = TransactionalTopologyBuilder("t", "feed", MemoryTransactionalSpout([rows], ("id", "ts"), take=2))
    builder.set_bolt("w", bolt, tasks).fields_grouping("feed", ["id"])
    builder.set_bolt("keep", DeltaSink("out", {"id": str})).global_grouping("w")
    return builder.set_settings({"retry_backoff": 0, **settings}).build_topology()


def tumbling() -> Any:
    return Ids().with_tumbling_window(TEN)


def timed() -> Any:
    return tumbling().with_timestamp_field("ts", "s")


def aggregate() -> Any:
    return WindowAggregate("id", table="counts", ttl=EVER, n="count").with_tumbling_window(TEN)


def on_c(wrong: Any, otherwise: Any) -> Any:
    """Return a function of a tuple, or of a list of tuples, that returns garbage if there is a `c`."""

    def function(given: Any) -> Any:
        found = {one["id"] for one in given} if isinstance(given, list) else {given["id"]}
        return wrong if "c" in found else otherwise(given)

    return function


TUPLE = r"id='c', ts={}\)"
FIX = "correct the tuple upstream, or leave such records out with on_error='dead_letter'"
TUPLES: dict[str, tuple[Any, ...]] = {
    "None as timestamp": (timed, f"w: field 'ts' of .*{TUPLE.format(None)}: .*got None; {FIX}", None),
    "a naive timestamp": (timed, r"feed.*tuple \('c', .*: field 'ts': .* has no time zone; .* give it one", NAIVE),
    "a text timestamp": (timed, f"w: field 'ts' of .*{TUPLE.format(repr('soon'))}: .*got str 'soon'; {FIX}", "soon"),
    "10,000 years off": (
        timed,
        "w: field 'ts' of .*id='c'.* outside the years 1 to 9999; is its unit really 's'.;",
        316_000_000_000,
    ),
    "None for an aggregate": (
        lambda: aggregate().with_timestamp_field("ts", "s"),
        f"w: field 'ts' of .*{TUPLE.format(None)}: .*got None; {FIX}",
        None,
    ),
    "an extractor's garbage": (
        lambda: tumbling().with_timestamp_extractor(on_c("x", lambda one: one["ts"])),
        f"w: the timestamp extractor of .*id='c'.*got str 'x'; {FIX}",
    ),
    "an extractor that raises": (
        lambda: tumbling().with_timestamp_extractor(lambda one: one["nothing" if one["id"] == "c" else "ts"]),
        "no field 'nothing'",
    ),
    "a naive time of an extractor": (
        lambda: tumbling().with_timestamp_extractor(on_c(NAIVE, lambda one: one["ts"])),
        "w: the timestamp extractor of .*id='c'.* has no time zone",
    ),
    "a gap's garbage": (
        lambda: Ids().with_session_window(on_c("x", lambda one: TEN)).with_timestamp_field("ts", "s"),
        "w: the function given to with_session_window .*id='c'.*expected a Duration .*got 'x'; write for example",
    ),
    "a gap of 0": (
        lambda: Ids().with_session_window(on_c(Duration(0), lambda one: TEN)).with_timestamp_field("ts", "s"),
        "w: the function given to with_session_window .*id='c'.*expected a duration longer than 0",
    ),
    "a trigger's garbage": (
        lambda: Ids().with_window(Count(2), on_c("x", lambda one: True)),
        "w: the trigger returned 'x' for .*id='c'.*expected True or False",
    ),
    "an evictor's garbage": (
        lambda: Ids().with_window(Count(1)).with_evictor(on_c(["x"], lambda tuples: tuples)),
        r"w\[\d\] raised ValueError .*the evictor returned \['x'\] for TupleWindow.*expected those of its tuples that",
    ),
}


@pytest.mark.parametrize("tasks", [1, 2])
@pytest.mark.parametrize("name", TUPLES)
def test_a_bad_tuple_ends_the_run_and_nothing_else_is_lost(name: str, tasks: int, tmp_path: Path) -> None:
    make, message, *given = TUPLES[name]
    (bad,) = given or [12]
    with pytest.raises(TopologyFailed, match=message):
        run(topology(make(), bad, tasks), engine="local", data_dir=tmp_path, available_now=True).awaitTermination(120)
    made = topology(make(), bad, tasks, on_error="dead_letter")
    handle = run(made, engine="local", data_dir=tmp_path, end_of_input=True)
    with pytest.warns(UserWarning, match="1 record is left out|left out"):
        handle.awaitTermination(120)
    assert sorted("".join(row["id"] for row in read_sink(tmp_path, "out").to_pylist())) == ["a", "b", "d"]
    assert read_letters(tmp_path).num_rows == 1


class WritesWhileIterating(Numbers):
    def execute(self, tuple: Any) -> None:
        super().execute(tuple)
        if tuple["id"] == "c":
            for key, _ in self.state:
                self.state.put(key + "!", 1)


class PrePrepare(Numbers):
    def pre_prepare(self, txid: int) -> None:
        if txid == 2:
            raise OSError("no mail")


STATEFUL = {
    "iteration while writing": (
        WritesWhileIterating,
        r"w\[0\] raised StateError .*changed while it was iterated; iterate over list\(state\) to .*; it was given .*id='c'",
    ),
    "pre_prepare raises": (PrePrepare, r"(?s)w\[0\] raised OSError at .*: no mail.*in pre_prepare"),
}


@pytest.mark.parametrize("name", STATEFUL)
def test_a_stateful_bolt_that_fails_loses_nothing(name: str, tmp_path: Path) -> None:
    make, message = STATEFUL[name]
    with pytest.raises(TxstormError, match=message):
        run(topology(make()), engine="local", data_dir=tmp_path, available_now=True).awaitTermination(120)
    run(topology(Numbers()), engine="local", data_dir=tmp_path, available_now=True).awaitTermination(120)
    rows = {json.loads(row["key"]): int(row["value"]) for row in StateView(tmp_path, "w").to_pylist()}
    assert rows == dict.fromkeys("abcd", 1)
