"""Failure matrix: every kind of exception, raised at every place in user code (storm.md c.3, items 43-48)."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle
from pathlib import Path

import pytest
from failing_net import COORDINATOR, GROUPINGS, PLACES, TUPLES, Trouble, failing_net
from recovery_cases import check, sums

from txstorm import run
from txstorm.errors import TopologyFailed
from txstorm.results.read import read_sink

LAST = len(PLACES) + 2
ROWS = [(txid, n) for txid in range(1, LAST + 1) for n in (2 * txid - 1, 2 * txid)]


@pytest.fixture
def marks(place: Path) -> Path:
    (place / "marks").mkdir()
    return place / "marks"


def rows_of(data_dir: Path, sink: str) -> list[tuple[int, int]]:
    return sorted((row["_txid"], row["n"]) for row in read_sink(data_dir, sink).to_pylist())


def assert_everything_once(data_dir: Path) -> None:
    assert rows_of(data_dir, "kept") == ROWS
    assert rows_of(data_dir, "ended") == ROWS
    assert sums(data_dir) == {n: 1 for _, n in ROWS}
    check(data_dir, LAST)


def each_in_its_txid(*errors: str) -> dict[str, tuple[int, str]]:
    """Return a failure plan: the i-th place raises in txid i + 2, cycling through `errors`."""
    return {place: (i + 2, errors[i % len(errors)]) for i, place in enumerate(PLACES)}


@pytest.mark.parametrize("rows", [False, True], ids=["tuples", "record batches"])
@pytest.mark.parametrize(
    ("errors", "settings"),
    [
        (("failed", "reported"), {}),
        (("reported", "failed"), {"max_pack_txids": 1, "max_group_txids": 1}),
        (("value", "exit"), {"on_error": "retry(1)"}),
        (("exit", "value"), {"on_error": "retry(1)"}),
    ],
    ids=["failed", "failed, one by one", "other", "exit"],
)
def test_what_fails_once_is_replayed_wherever_it_fails(place, marks, errors, settings, rows):
    trouble = Trouble(marks, each_in_its_txid(*errors))
    handle = run(failing_net(trouble, rows=rows, **settings), engine="local", data_dir=place / "data", until_txid=LAST)
    handle.awaitTermination()
    assert {mark.name for mark in marks.iterdir()} == set(PLACES)
    assert handle.progress.failures == ()
    assert_everything_once(place / "data")


@pytest.mark.spark
def test_the_same_on_spark(spark, place, marks):
    trouble = Trouble(marks, each_in_its_txid("failed", "value", "reported", "exit", "failed"))
    topology = failing_net(trouble, on_error="retry(1)")
    run(topology, spark=spark, data_dir=place / "data", until_txid=LAST).awaitTermination()
    assert {mark.name for mark in marks.iterdir()} == set(PLACES)
    assert_everything_once(place / "data")


def named(where: str) -> str:
    """Return the name of a place as it appears in failure messages."""
    component = {"is_ready": "numbers", "initialize": "numbers", "emitter": "numbers", "grouping": "basic"}
    return {**component, "behind.grouping": "keep"}.get(where, where.partition(".")[0])


@pytest.mark.parametrize(("where", "error"), list(zip(PLACES, cycle(["value", "exit"]))))
def test_another_exception_ends_the_topology_after_what_was_before_it(place, marks, where, error):
    trouble = Trouble(marks, {where: (5, error)})
    topology = failing_net(trouble)
    handle = run(topology, engine="local", data_dir=place / "data", until_txid=8)
    kind = {"value": "ValueError", "exit": "SystemExit"}[error]
    with pytest.raises(TopologyFailed, match=rf"txid 5.*{named(where)}.*raised {kind}.*trouble in {where}") as failure:
        handle.awaitTermination()

    if where not in COORDINATOR:
        assert "failing_net.py:" in str(failure.value)
        assert handle.status["failures"][5]["count"] == 1
    given = {"keep.execute": "Tuple(batch", "behind.execute": "Tuple(keep", "batch.execute": "Tuple(basic"}
    if where in TUPLES:
        assert f"it was given {given.get(where, 'Tuple(numbers')}" in str(failure.value)
        assert "n=9)" in str(failure.value)
    if where in GROUPINGS:
        assert "it was given {'n': 9}" in str(failure.value)
    assert handle.committed == 4
    assert rows_of(place / "data", "ended") == ROWS[:8]

    # A restart replays it.
    run(topology, engine="local", data_dir=place / "data", until_txid=8).awaitTermination()
    assert rows_of(place / "data", "kept") == rows_of(place / "data", "ended") == ROWS[:16]
    check(place / "data", 8)


def test_the_rows_of_a_record_batch_are_named(place, marks):
    trouble = Trouble(marks, {"keep.execute": (3, "value")})
    handle = run(failing_net(trouble, rows=True), engine="local", data_dir=place / "data", until_txid=LAST)
    with pytest.raises(TopologyFailed, match=r"keep\[\d\].*given rows 1 to \d of its input, stream 'default' of batch"):
        handle.awaitTermination()


def test_the_last_cause_of_a_txid_is_shown_over_restarts_and_told_when_it_is_committed(place, marks):
    trouble = Trouble(marks, {"keep.finish": (3, "value")}, always=True)
    topology = failing_net(trouble, on_error="retry(1)")
    with pytest.raises(TopologyFailed):
        run(topology, engine="local", data_dir=place / "data", until_txid=5).awaitTermination()

    seen: list[Mapping] = []
    cured = failing_net(Trouble(marks, {}), on_error="retry(1)")
    handle = run(
        cured,
        engine="local",
        data_dir=place / "data",
        until_txid=5,
        listeners=[lambda one: seen.append(handle.status["failures"])],
    )
    assert "trouble in keep.finish" in (handle.status["lastFailure"] or "")
    handle.awaitTermination()
    third = next(one for one in handle.recentProgress if one.txid == 3)
    assert third.failures == 2
    assert "ValueError" in third.cause
    assert "trouble in keep.finish" in third.json
    assert handle.status["failures"] == {}


def test_a_listener_that_raises_is_logged_and_nothing_else(place, marks, caplog):
    def listener(progress):
        raise SystemExit if progress.txid == 2 else RuntimeError(f"no wish to hear of {progress.txid}")

    topology = failing_net(Trouble(marks, {}))
    handle = run(topology, engine="local", data_dir=place / "data", until_txid=LAST, listeners=[listener])
    handle.awaitTermination()
    assert_everything_once(place / "data")
    assert "no wish to hear of 3" in caplog.text
