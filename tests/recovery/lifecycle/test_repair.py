"""Repair of a decided group that cannot be published: its report and its roll-back (design rule R13)."""

from contextlib import closing
from pathlib import Path

import pytest
from crashes import crashing
from drivers import assert_as_undisturbed
from recovery_cases import eventually

from txstorm.errors import BlockedError, HeldError, InputError, TableCorrupt
from txstorm.ledger.open import open_ledger
from txstorm.operations.lifecycle import kill
from txstorm.operations.repair import abandon
from txstorm.operations.status import read_inspection, read_status


def decided(go, point: str = "p6.after") -> None:
    """Run until the process fails with a decided group, txid 3 alone."""
    with crashing(point, 3):
        go(until_txid=5, settings={"max_spout_pending": 1}).awaitTermination()


def assert_goes_on(go, data_dir: Path) -> None:
    go(until_txid=6).awaitTermination()
    assert_as_undisturbed(data_dir, 6)


def test_an_abandoned_group_is_processed_again_once(go, data_dir):
    decided(go)
    before = read_inspection(data_dir)
    assert [(one["first"], one["last"]) for one in before["decided"]] == [(3, 3)]
    tables = [(one["table"], one["published"]) for one in before["decided"][0]["tables"]]
    assert tables == [("changes/seen", False), ("changes/total", False)]
    told = abandon(data_dir, 3)
    assert (told["abandoned"], told["unreached"], told["currtx"]) == ([3, 3], {}, 3)
    after = read_inspection(data_dir)
    assert (after["decided"], after["epoch"], after["metadata"].keys()) == ([], 2, before["metadata"].keys())
    assert_goes_on(go, data_dir)
    assert read_inspection(data_dir)["epoch"] == 3


def test_a_group_that_one_table_has_cannot_be_abandoned_but_is_rolled_forward(go, data_dir):
    decided(go, "p7.2.before")
    text = "txids 3-3 are published in table changes/seen and cannot be abandoned.*only a rewind to before txid 3"
    with pytest.raises(InputError, match=text):
        abandon(data_dir, 3)
    assert [one["published"] for one in read_inspection(data_dir)["decided"][0]["tables"]] == [True, False]
    assert_goes_on(go, data_dir)


@pytest.mark.parametrize(("txid", "text"), [(2, "txid 2 is committed; .* are: 3-3"), (4, "txid 4 is not decided")])
def test_only_decided_and_uncompleted_groups_can_be_abandoned(go, data_dir, txid, text):
    decided(go)
    with pytest.raises(InputError, match=text):
        abandon(data_dir, txid)
    assert read_inspection(data_dir)["epoch"] == 1
    assert_goes_on(go, data_dir)


def test_a_running_topology_is_refused(go, data_dir):
    decided(go)
    with closing(open_ledger(data_dir, create=False)) as holder:
        holder.acquire("life")
        with pytest.raises(HeldError, match="is held by 'life'"):
            abandon(data_dir, 3)


def test_a_blocked_table_shows_in_the_status_and_nothing_is_planned(go, data_dir, place):
    """While a table's log is missing, the status reports the table as blocked, and no transaction is planned."""
    log, away = data_dir / "changes/seen/_delta_log", place / "away"

    def trouble(txid):
        if txid == 3:
            log.rename(away)

    handle = go(trouble=trouble, settings={"max_group_txids": 1, "finish_ahead": False})
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
    found = [(one["table"], one["published"], one["cause"]) for one in group["tables"]]
    assert found == [("changes/seen", False, "there is no table"), ("changes/total", False, "")]
    with pytest.raises(TableCorrupt, match="the ledger knows the table changes/seen"):
        go()
    assert set(abandon(data_dir, 3)["unreached"]) == {"changes/seen"}
    assert read_status(data_dir)["blocked"] is None
    away.rename(log)
    assert_goes_on(go, data_dir)


@pytest.mark.parametrize("table", ["changes/seen", "changes/total"])
def test_a_table_that_cannot_be_read_might_hold_it(go, data_dir, table):
    decided(go)
    entry = sorted((data_dir / table / "_delta_log").glob("*.json"))[-1]
    kept = entry.read_bytes()
    entry.write_bytes(b"{")
    with pytest.raises(InputError, match=f"whether {table} holds txids 3-3 is unknown"):
        abandon(data_dir, 3)
    entry.write_bytes(kept)
    assert_goes_on(go, data_dir)
