"""Runs with a history limited by age: kills during the vacuum, and queries of removed versions."""

from collections import Counter

import pytest
from recovery_cases import content, ended, ends, eventually, killed, open_books
from scenarios.words import TXIDS, lines, spout, topology

import txstorm
from txstorm import run
from txstorm.errors import InputError, StateError
from txstorm.ledger.paths import KEPT
from txstorm.runtime import maintenance as retention
from txstorm.runtime import session
from txstorm.storage.tables.history import read_history

SHORT = ("--set", "history_retention=0.001")
SETTINGS = {"max_spout_pending": 4, "max_pack_txids": 2, "max_group_txids": 1}


@pytest.mark.parametrize("point", ["retain.announced", "retain.pruned", "retain.files", "retain.history"])
def test_killed_during_removal_and_restarted(undisturbed, data_dir, point):
    argv = [data_dir, "--layout", "merge" if point == "retain.files" else "changes", *SHORT]
    if point != "retain.announced":  # the first time there is nothing yet to begin from
        ends(*argv, "--txids", 4)
    killed(f"{point}:kill:1", *argv)
    ends(*argv)
    found = content(data_dir)
    assert (found.states, found.sinks) == (undisturbed().states, undisturbed().sinks)


def go_on(data_dir, until, **settings):
    made = topology(spout("memory", TXIDS, data_dir), 3).with_settings({**SETTINGS, **settings})
    return ended(made, data_dir, until_txid=until)


def test_what_is_before_the_kept_history_is_refused_by_name(place, data_dir):
    go_on(data_dir, 2).savepoint("two")
    go_on(data_dir, 4, history_retention=0.001)
    handle = go_on(data_dir, 5, history_retention=0.001)
    words = handle.state("counts").as_of(5).to_pylist()
    go_on(data_dir, TXIDS)

    for refused in (lambda: txstorm.rewind(data_dir, 3), lambda: handle.savepoint("three", txid=3)):
        with pytest.raises(InputError, match="txid 3 is before the kept history, which begins with txid 5"):
            refused()
    with pytest.raises(StateError, match="txid 3 is older than what is kept"):
        handle.snapshot(3).to_arrow()
    with pytest.raises(StateError, match=r"up to txid \d are no longer kept"):
        handle.state("counts").changes(1, 3)
    assert set(read_history(data_dir)["txid"].to_pylist()) == {5, 6, 7, 8}

    txstorm.restore_savepoint(data_dir, "two", place / "copy")
    txstorm.rewind(data_dir, 5)
    assert handle.state("counts").to_pylist() == words
    for directory in (data_dir, place / "copy"):
        go_on(directory, TXIDS, history_retention=0.001)
    assert content(data_dir).states == content(place / "copy").states


def test_a_savepoint_that_is_made_while_the_history_moves_on_does_not_come_to_be(data_dir):
    handle = go_on(data_dir, 4)

    def moves_on():
        with open_books(data_dir, write=True) as books:
            books.put_if([], {KEPT: 4})
        return 0.0

    with pytest.raises(InputError, match=r"was removed while it was made: .*begins with txid 4"):
        txstorm.create_savepoint(handle.data_dir, "three", txid=3, clock=moves_on)
    assert txstorm.list_savepoints(handle.data_dir) == []


def test_expired_versions_are_removed_during_the_run(data_dir, monkeypatch):
    """Expired versions and history are removed during the run, not only when it stops."""
    monkeypatch.setattr(retention, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(session, "HISTORY_GROUPS", 1)
    settings = {**SETTINGS, "history_retention": 0.01, "compact_on_stop": False}
    made = topology(spout("memory", 40, data_dir), 3, layout="merge").with_settings(settings)
    handle = run(made, engine="local", data_dir=data_dir)
    handle.processAllAvailable()

    assert eventually(lambda: read_history(data_dir)["txid"].to_pylist()[:1] >= [30])
    handle.stop()
    assert handle.awaitTermination(60)
    assert {row["word"]: row["n"] for row in handle.state("counts").to_pylist()} == Counter(
        word for line in lines(40) for word in line.split()
    )
