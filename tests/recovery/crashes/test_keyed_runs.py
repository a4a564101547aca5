"""Runs with collections and times to live: each txid matches the model after crashes and replays."""

import pytest
from crashes import crashing
from recovery_cases import check, ended
from scenarios.shelf import KINDS, batches, expected, made, topology
from watched import Shelf

import txstorm
from txstorm import rewind
from txstorm.books.origin import CodeOrigin
from txstorm.engine.local import LocalEngine
from txstorm.replay.audit import audit
from txstorm.replay.backfill import backfill
from txstorm.replay.recording import Recording, Span
from txstorm.spouts import OpaqueMemoryTransactionalSpout
from txstorm.testing import TopologyTestDriver

TXIDS = 12


@pytest.mark.parametrize(
    ("point", "nth", "kind"),
    [
        ("p5.staged.before", 13, "partitioned"),
        ("p5.staged.after", 11, "planned"),
        ("p6.before", 4, "partitioned"),
        ("p6.after", 4, "planned"),
        ("p7.2.written", 4, "partitioned"),
        ("p7.5.written", 4, "planned"),
    ],
)
def test_crashed_and_replayed_with_other_numbers(data_dir, shelf, point, nth, kind):
    numbers = list(range(1, 2 * TXIDS + 1))
    others = [*numbers[:6], 66, 67, *numbers[8:]]
    keyed = topology(KINDS[kind](shelf.write(others)), max_group_txids=1)
    with crashing(point, nth):
        ended(keyed, data_dir, until_txid=TXIDS)
    decided = point.startswith(("p6.after", "p7"))

    shelf.write(others if decided else numbers)
    ended(keyed, data_dir, until_txid=TXIDS)
    check(data_dir, TXIDS)
    found = batches(data_dir, TXIDS)
    assert [n for _, _, part in found for n in part] == (others if decided else numbers)
    assert made(data_dir) == expected(found)


def ran(place, txids=TXIDS):
    """Run a topology up to a txid, committing in groups; return the handle of the completed run."""
    shelf = Shelf(place / "shelf.json").write(list(range(1, 2 * TXIDS + 1)))
    return ended(topology(KINDS["planned"](shelf)), place / "data", until_txid=txids)


def test_every_txid_shows_what_the_model_shows_and_so_do_savepoint_and_rewind(place):
    ran(place, 4)
    handle = ran(place)
    data = place / "data"
    found = batches(data, TXIDS)
    shown = {txid: made(data, txid) for txid in range(1, TXIDS + 1)}
    assert shown == {txid: expected(found[:txid]) for txid in range(1, TXIDS + 1)}
    changes = handle.state("recent").changes(1, TXIDS)
    assert set(changes.column_names) == {"k", "at", "_seq", "n", "_stamp", "_txid", "_prev", "_op"}

    handle.savepoint("five", txid=5)
    txstorm.restore_savepoint(data, "five", place / "copy", topology="keyed")
    assert made(place / "copy") == shown[5]
    assert rewind(data, 5)["txid"] == 5
    assert made(data) == shown[5]
    ran(place)
    assert batches(data, 5) == found[:5]
    assert made(data) == expected(batches(data, TXIDS))


def test_audit_and_backfill_reproduce_the_committed_rows(place):
    """Audits and backfills reproduce the committed rows: they use the recorded stamps, not the clock."""
    ran(place, 4)
    ran(place)
    again = topology(KINDS["planned"](Shelf(place / "shelf.json")))
    recording, verdicts = Recording(place / "data"), []
    audit(again, recording, Span(6, TXIDS), LocalEngine(), verdicts.append)
    assert [(one.txid, one.equal) for one in verdicts] == [(txid, True) for txid in range(6, TXIDS + 1)]
    backfill(
        again, recording, Span(1, TXIDS), place / "new", LocalEngine(), CodeOrigin(None, "", ""), lambda txid: None
    )
    assert made(place / "new") == made(place / "data")


def test_a_test_clock_sets_the_stamps_of_replays():
    """With a test clock, a replay planned later with other numbers reads the state as of its own stamp."""
    spout = OpaqueMemoryTransactionalSpout([[3, 6]], "n", take=1)
    with TopologyTestDriver(topology(spout)) as driver:
        driver.commit()
        driver.advance(0.03)
        driver.commit()
        assert lately(driver) == [{"k": 0, "n": 2}]
        spout.add(0, 9)
        driver.next_tuple()
        driver.ack(3)
        spout.replace(0, [3, 6, 12])
        driver.clock.advance(0.06)  # its first attempt saw two numbers before it, this one sees none
        driver.fail(3)
        driver.commit()
        assert lately(driver) == [{"k": 0, "n": 1}]
        saw = {"k": 0, "n": 12, "inside": 12, "lately": 1, "recent": 1, "_txid": 3}
        assert driver.sink("saw").to_pylist()[-1] == saw
        driver.restart()
        assert [row["n"] for row in driver.state("events").to_pylist()] == [3, 6, 12]
        assert driver.state("lately").as_of(2).to_pylist() == [{"k": 0, "n": 2}]


def lately(driver):
    return driver.state("lately").to_pylist()
