"""Repair of a decided group that cannot be published: its report and its roll-back (design rule R13)."""

from __future__ import annotations

from pathlib import Path

import pytest
from recovery_cases import check, eventually
from scenarios.endless import expected, life
from watched import Diary

from txstorm import faults, run
from txstorm.errors import BlockedError, HeldError, InputError, TableCorrupt
from txstorm.ledger.open import open_ledger
from txstorm.operations.lifecycle import kill
from txstorm.operations.repair import abandon
from txstorm.operations.status import read_inspection, read_status
from txstorm.results.read import read_state


@pytest.fixture
def data_dir(place: Path) -> Path:
    return place / "data"


def go(data_dir: Path, **options):
    topology = life(Diary(data_dir.with_name("diary")))
    return run(topology, engine="local", data_dir=data_dir, **options)


def decided(data_dir: Path, fault: str = "p6.after:raise:3") -> None:
    """Run until the process fails with a decided group, txid 3 alone."""
    faults.arm(fault)
    with pytest.raises(faults.InjectedFault):
        go(data_dir, until_txid=5, settings={"max_spout_pending": 1}).awaitTermination()
    faults.arm("")


def assert_goes_on(data_dir: Path, txids: int = 6) -> None:
    go(data_dir, until_txid=txids).awaitTermination()
    seen = {row["n"]: row["times"] for row in read_state(data_dir, "seen").to_pylist()}
    assert (seen, read_state(data_dir, "total").to_pylist()[0]["n"]) == expected(txids)
    check(data_dir, txids)


def test_an_abandoned_group_is_processed_again_once(data_dir):
    decided(data_dir)
    before = read_inspection(data_dir)
    assert [(one["first"], one["last"]) for one in before["decided"]] == [(3, 3)]
    assert [(one["table"], one["published"]) for one in before["decided"][0]["tables"]] == [
        ("changes/seen", False),
        ("changes/total", False),
    ]
    told = abandon(data_dir, 3)
    assert (told["abandoned"], told["unreached"], told["currtx"]) == ([3, 3], {}, 3)
    after = read_inspection(data_dir)
    assert (after["decided"], after["epoch"], after["metadata"].keys()) == ([], 2, before["metadata"].keys())
    assert_goes_on(data_dir)
    assert read_inspection(data_dir)["epoch"] == 3


def test_a_group_that_one_table_has_cannot_be_abandoned_but_is_rolled_forward(data_dir):
    decided(data_dir, "p7.2.before:raise:3")
    text = "txids 3-3 are published in table changes/seen and cannot be abandoned.*only a rewind to before txid 3"
    with pytest.raises(InputError, match=text):
        abandon(data_dir, 3)
    assert [one["published"] for one in read_inspection(data_dir)["decided"][0]["tables"]] == [True, False]
    assert_goes_on(data_dir)


@pytest.mark.parametrize(("txid", "text"), [(2, "txid 2 is committed; .* are: 3-3"), (4, "txid 4 is not decided")])
def test_only_decided_and_uncompleted_groups_can_be_abandoned(data_dir, txid, text):
    decided(data_dir)
    with pytest.raises(InputError, match=text):
        abandon(data_dir, txid)
    assert read_inspection(data_dir)["epoch"] == 1
    assert_goes_on(data_dir)


def test_a_running_topology_is_refused(data_dir):
    decided(data_dir)
    holder = open_ledger(data_dir, create=False)
    holder.acquire("life")
    try:
        with pytest.raises(HeldError, match="is held by 'life'"):
            abandon(data_dir, 3)
    finally:
        holder.close()


def test_a_blocked_table_shows_in_the_status_and_nothing_is_planned(data_dir, place):
    """While a table's log is missing, the status reports the table as blocked, and no transaction is planned."""
    log, away = data_dir / "changes/seen/_delta_log", place / "away"

    def trouble(txid):
        if txid == 3:
            log.rename(away)

    topology = life(Diary(place / "diary"), trouble=trouble, max_group_txids=1, finish_ahead=False)
    handle = run(topology, engine="local", data_dir=data_dir)
    status = eventually(lambda: (now := read_status(data_dir))["blocked"] and now)
    assert "changes/seen" in status["blocked"]
    assert (status["committed_txid"], handle.status["message"]) == (2, f"BLOCKED({status['blocked']})")
    planned = status["in_flight"][-1][0]
    eventually(lambda: handle._driver.control._look_at > handle._session.lanes.monotonic() + 0.1)
    assert handle.in_flight[-1][0] == planned
    kill(data_dir, 0)
    with pytest.raises(BlockedError):
        handle.awaitTermination()

    after = read_inspection(data_dir)
    assert (after["mode"], after["blocked"]) == ("failed", status["blocked"])
    assert "BlockedError" in after["error"]
    (group,) = after["decided"]
    assert [(one["table"], one["published"], one["cause"]) for one in group["tables"]] == [
        ("changes/seen", False, "there is no table"),
        ("changes/total", False, ""),
    ]
    with pytest.raises(TableCorrupt, match="the ledger knows the table changes/seen"):
        go(data_dir)
    assert set(abandon(data_dir, 3)["unreached"]) == {"changes/seen"}
    assert read_status(data_dir)["blocked"] is None
    away.rename(log)
    assert_goes_on(data_dir)


@pytest.mark.parametrize("table", ["changes/seen", "changes/total"])
def test_a_table_that_cannot_be_read_might_hold_it(data_dir, table):
    decided(data_dir)
    entry = sorted((data_dir / table / "_delta_log").glob("*.json"))[-1]
    kept = entry.read_bytes()
    entry.write_bytes(b"{")
    with pytest.raises(InputError, match=f"whether {table} holds txids 3-3 is unknown"):
        abandon(data_dir, 3)
    entry.write_bytes(kept)
    assert_goes_on(data_dir)
