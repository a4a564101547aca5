"""Failure matrix: every kind of exception, raised at every place in user code (storm.md c.3, items 43-48)."""

from itertools import cycle
from pathlib import Path

import pytest
from failing_net import COORDINATOR, GROUPINGS, PLACES, TUPLES, Trouble, failing_net
from recovery_cases import check, ended, sums

from txstorm import run
from txstorm.errors import TopologyFailed
from txstorm.results.read import read_sink

LAST = len(PLACES) + 2
ROWS = [(txid, n) for txid in range(1, LAST + 1) for n in (2 * txid - 1, 2 * txid)]


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
def test_what_fails_once_is_replayed_wherever_it_fails(place, data_dir, errors, settings, rows):
    trouble = Trouble(place, each_in_its_txid(*errors))
    handle = ended(failing_net(trouble, rows=rows, **settings), data_dir, until_txid=LAST)
    assert trouble.raised() == set(PLACES)
    assert handle.progress.failures == ()
    assert_everything_once(data_dir)


@pytest.mark.spark
def test_the_same_on_spark(spark, place, data_dir):
    trouble = Trouble(place, each_in_its_txid("failed", "value", "reported", "exit", "failed"))
    ended(failing_net(trouble, on_error="retry(1)"), data_dir, "spark", spark=spark, until_txid=LAST)
    assert trouble.raised() == set(PLACES)
    assert_everything_once(data_dir)


def named(where: str) -> str:
    """Return the name of a place as it appears in failure messages."""
    component = {"is_ready": "numbers", "initialize": "numbers", "emitter": "numbers", "grouping": "basic"}
    return {**component, "behind.grouping": "keep"}.get(where, where.partition(".")[0])


@pytest.mark.parametrize(("where", "error"), list(zip(PLACES, cycle(["value", "exit"]))))
def test_another_exception_ends_the_topology_after_what_was_before_it(place, data_dir, where, error):
    topology = failing_net(Trouble(place, {where: (5, error)}))
    handle = run(topology, engine="local", data_dir=data_dir, until_txid=8)
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
    assert rows_of(data_dir, "ended") == ROWS[:8]

    # A restart replays it.
    ended(topology, data_dir, until_txid=8)
    assert rows_of(data_dir, "kept") == rows_of(data_dir, "ended") == ROWS[:16]
    check(data_dir, 8)


def test_the_rows_of_a_record_batch_are_named(place, data_dir):
    topology = failing_net(Trouble(place, {"keep.execute": (3, "value")}), rows=True)
    with pytest.raises(TopologyFailed, match=r"keep\[\d\].*given rows 1 to \d of its input, stream 'default' of batch"):
        ended(topology, data_dir, until_txid=LAST)


def test_the_last_cause_of_a_txid_is_shown_over_restarts_and_told_when_it_is_committed(place, data_dir):
    trouble = Trouble(place, {"keep.finish": (3, "value")}, always=True)
    with pytest.raises(TopologyFailed):
        ended(failing_net(trouble, on_error="retry(1)"), data_dir, until_txid=5)

    handle = run(failing_net(Trouble(place), on_error="retry(1)"), engine="local", data_dir=data_dir, until_txid=5)
    assert "trouble in keep.finish" in (handle.status["lastFailure"] or "")
    handle.awaitTermination()
    third = next(one for one in handle.recentProgress if one.txid == 3)
    assert third.failures == 2
    assert "ValueError" in third.cause
    assert "trouble in keep.finish" in third.json
    assert handle.status["failures"] == {}


def test_a_listener_that_raises_is_logged_and_nothing_else(place, data_dir, caplog):
    def listener(progress):
        raise SystemExit if progress.txid == 2 else RuntimeError(f"no wish to hear of {progress.txid}")

    ended(failing_net(Trouble(place)), data_dir, until_txid=LAST, listeners=[listener])
    assert_everything_once(data_dir)
    assert "no wish to hear of 3" in caplog.text
