"""Exhaustive simulation of small worlds: with any fault at any command, and another one later, txids count once.

TXSTORM_STRIKES is the number of faults per world in the long test (default 2; 3 searches everything).
"""

import json
import os

import pytest

from txstorm.cli.main import execute
from txstorm.errors import InputError
from txstorm.simulation import Scope, searched, story
from txstorm.simulation.exhaustive import SCOPES, SHARPEST
from txstorm.storage.tables.table_log import TransactionalTable

STRIKES = int(os.environ.get("TXSTORM_STRIKES", "2"))
CHANGED = {
    *(
        f"ledger commit {path}"
        for path in ("identity", "epoch", "tables", "coordinator/meta", "intents", "history", "status")
    ),
    *(f"table {what} {uri}" for what in ("create", "commit") for uri in ("sinks/out", "changes/kept", "state/kept")),
}


@pytest.fixture
def blind_retry(monkeypatch):
    """Defect: publishing does not check whether the table already contains the group, so a retry publishes it twice."""
    original = TransactionalTable._published

    def published(table, one, intent, epoch):
        return None if table.last_txid() >= intent.last else original(table, one, intent, epoch)

    monkeypatch.setattr(TransactionalTable, "_published", published)


def test_any_single_fault_at_any_command_is_survived(capsys):
    assert execute(["simulate", "--exhaustive", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (found["violations"], found["pairs"], found["missed"]) == (0, 0, [])
    assert set(found["commands"]) == {*CHANGED, "table create sinks/more", "table commit sinks/more"}
    times = [times for struck in found["commands"].values() for times in struck.values()]
    assert found["worlds"] == len(SCOPES) + sum(times)
    assert min(times) >= 1
    assert {tuple(struck) for struck in found["commands"].values()} == {SHARPEST}


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("scope", SCOPES, ids=str)
def test_combinations_of_several_faults_are_survived(scope):
    search = searched(STRIKES, [scope])
    print(search.to_json())
    assert [story(found) for found in search.found[:1]] == []
    assert search.missed() == []
    assert search.worlds > 5000


def test_a_protocol_defect_is_found(blind_retry):
    search = searched(1, [Scope(2, opaque=False)])
    kinds = {strike.kind for found in search.found for strike in found.schedule.strikes}
    assert kinds
    assert kinds <= set(SHARPEST)
    assert story(search.found[0]).splitlines()[-1].strip().startswith("-- VIOLATION of invariant ")


@pytest.mark.parametrize("wrong", [{"strikes": 0}, {"strikes": 4}, {"scopes": [Scope(4, opaque=True)]}], ids=str)
def test_scopes_out_of_range_are_rejected(wrong):
    with pytest.raises(InputError, match=r"expected 1 to 3, got [04]"):
        searched(**wrong)


def test_the_command_reports_a_protocol_defect(capsys, blind_retry):
    assert execute(["simulate", "--exhaustive", "1"]) == 1
    printed = capsys.readouterr()
    assert "-- VIOLATION of invariant" in printed.err
    assert "  table commit sinks/out          crash " in printed.out
