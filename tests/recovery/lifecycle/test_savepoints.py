"""Savepoints: created during a run, retained, restored to another directory, and continued from there."""

import json
import shutil
from dataclasses import replace

import pytest
from recovery_cases import content, ended, open_books
from scenarios.words import SPOUTS, TXIDS, spout, topology

import txstorm
from txstorm import run
from txstorm.books.savepoint import Savepoint, kept_versions
from txstorm.errors import DataDirectoryError, InputError, LedgerCorrupt, StateError, TableCorrupt
from txstorm.ledger.paths import savepoint_path
from txstorm.operations.move_ledger import copy_ledger
from txstorm.operations.rebuild_ledger import recover

SETTINGS = {"max_spout_pending": 4, "max_pack_txids": 2, "max_group_txids": 2}


def go_on(data_dir, kind, *, until=None, poison=None, name="crash"):
    made = topology(spout(kind, TXIDS, data_dir), 3, poison=poison)
    settings = {**SETTINGS, **({"on_error": "dead_letter"} if poison else {})}
    limit = {} if until is None else {"until_txid": until}
    return ended(replace(made, id=name).with_settings(settings), data_dir, **limit)


def after(data_dir, txid):
    """Return the content of a directory, without the history of transactions before `txid`."""
    found = content(data_dir)
    return found.states, found.sinks, found.letters, [one for one in found.batches if one[0] > txid]


@pytest.mark.parametrize("kind", SPOUTS)
def test_a_restored_savepoint_continues_like_the_original(place, kind):
    """A run restored at txid 3, within a group, continues like the original, which has since compacted and vacuumed."""
    original = go_on(place / "data", kind, until=5)
    original.savepoint("three", txid=3)
    at = {name: table.to_pylist() for name, table in original.snapshot(3).to_arrow().items()}
    go_on(place / "data", kind)

    made = txstorm.restore_savepoint(place / "data", "three", place / "copy", topology="copy")

    assert (made["topology"], made["txid"], made["outside"]) == ("copy", 3, [])
    cut = txstorm.snapshot(place / "copy")
    assert (cut.txid, {name: table.to_pylist() for name, table in cut.to_arrow().items()}) == (3, at)
    assert go_on(place / "copy", kind, name="copy").progress.txids == TXIDS - 3
    assert after(place / "copy", 3) == after(place / "data", 3)
    earlier = txstorm.snapshot(place / "copy", txid=2)
    assert all(why == "it begins after txid 3" for why in earlier.left_out.values())
    for name in {uri.partition("/")[2] for uri in at if uri.startswith("state/")}:
        with pytest.raises(StateError, match="as of txid 2: it begins after txid 3"):
            earlier.state(name).to_arrow()
    assert [path.name for path in place.iterdir() if path.name.startswith(".")] == []


def test_dead_letters_go_along(place):
    go_on(place / "data", "memory", poison="cow").savepoint("all")
    txstorm.restore_savepoint(place / "data", "all", place / "copy")
    found = txstorm.snapshot(place / "copy").dead_letters().to_arrow()
    assert found.num_rows > 0
    assert found == txstorm.snapshot(place / "data").dead_letters().to_arrow()
    go_on(place / "copy", "memory", poison="cow")


def test_made_and_restored_while_the_original_runs(place):
    made = topology(spout("memory", TXIDS, place / "data"), 3).with_settings(SETTINGS)
    handle = run(made, engine="local", data_dir=place / "data")
    handle.processAllAvailable()
    assert (handle.savepoint("now").txid, handle.isActive) == (TXIDS, True)
    txstorm.restore_savepoint(place / "data", "now", place / "copy")
    assert handle.isActive
    handle.stop()
    assert after(place / "copy", TXIDS) == after(place / "data", TXIDS)


def test_they_move_with_the_ledger_and_survive_its_sweeps(place):
    go_on(place / "data", "memory", until=4).savepoint("early", txid=2)
    copy_ledger(str(place / "data"), f"delta:{place / 'ledger'}")
    go_on(place / "data", "memory")
    [found] = txstorm.list_savepoints(place / "data")
    assert (found.name, found.txid, found.topology) == ("early", 2, "crash")
    assert txstorm.restore_savepoint(place / "data", "early", place / "copy")["txid"] == 2
    assert txstorm.delete_savepoint(place / "data", "early") == found
    assert txstorm.list_savepoints(place / "data") == []


def test_a_restored_directory_whose_ledger_is_lost_can_be_recovered(place):
    go_on(place / "data", "file", until=4).savepoint("four")
    txstorm.restore_savepoint(place / "data", "four", place / "copy")
    (place / "copy" / "ledger.db").unlink()
    assert recover(place / "copy")["committed_txid"] == 4
    go_on(place / "copy", "file")
    go_on(place / "data", "file")
    assert after(place / "copy", 4) == after(place / "data", 4)


@pytest.fixture
def data(place):
    go_on(place / "data", "memory", until=3).savepoint("one", txid=1)
    return place / "data"


def test_what_is_refused(data):
    with pytest.raises(InputError, match="there is a savepoint 'one' already, of txid 1"):
        txstorm.create_savepoint(data, "one")
    with pytest.raises(InputError, match="a name is a letter followed by"):
        txstorm.create_savepoint(data, "../one")
    for txid, message in ((4, "txid 4 is not committed"), (0, "nothing is committed before txid 1")):
        with pytest.raises(InputError, match=message):
            txstorm.create_savepoint(data, "two", txid=txid)
    for ask in (txstorm.delete_savepoint, lambda *one: txstorm.restore_savepoint(*one, data.parent / "new")):
        with pytest.raises(InputError, match=r"no savepoint 'on' \(did you mean 'one'\?\); it has one"):
            ask(data, "on")
    with pytest.raises(InputError, match="expected a new directory to restore into, found something there"):
        txstorm.restore_savepoint(data, "one", data)
    with pytest.raises(InputError, match="topology 'a b'"):
        txstorm.restore_savepoint(data, "one", data.parent / "new", topology="a b")
    with pytest.raises(DataDirectoryError, match="does not exist"):
        txstorm.create_savepoint(data.parent / "nothing", "one")
    assert sorted(path.name for path in data.parent.iterdir()) == ["data"]


def test_a_savepoint_whose_table_is_gone_leaves_nothing_behind(data):
    shutil.rmtree(data / "changes/totals")
    with pytest.raises(TableCorrupt, match="changes/totals"):
        txstorm.restore_savepoint(data, "one", data.parent / "new")
    assert sorted(path.name for path in data.parent.iterdir()) == ["data"]


def test_the_form_in_the_ledger(data):
    with open_books(data, write=True) as books:
        known = books.savepoints()["one"]
        document = known.to_json()
        assert (document["format"], document["version"]) == ("txstorm-savepoint", 1)
        assert Savepoint.from_json(json.loads(json.dumps(document))) == known
        assert kept_versions([known]) == {uri: {table.version} for uri, table in known.tables.items()}
        assert books.put_if([], {savepoint_path("newer"): {**document, "version": 3}})
    with pytest.raises(DataDirectoryError, match="format version 3 is newer than 2"):
        txstorm.list_savepoints(data)
    with pytest.raises(LedgerCorrupt, match="expected format 'txstorm-savepoint'"):
        Savepoint.from_json({**document, "txid": 1, "more": 2})


def test_the_command(data, command):
    made = command.json("savepoint", "create", data, "two", "--txid", 2)
    assert (made["name"], made["txid"], made["timeline"]) == ("two", 2, 0)
    assert [one["name"] for one in command.json("savepoint", "list", data)["savepoints"]] == ["one", "two"]
    new = data.with_name("new")
    tables = ["changes/counts", "changes/totals", "sinks/words"]
    shown = {"topology": "trial", "data_dir": str(new), "savepoint": "two", "txid": 2, "tables": tables, "outside": []}
    assert command.json("savepoint", "restore", data, "two", new, "--topology", "trial") == shown
    assert command.json("savepoint", "delete", data, "two")["txid"] == 2
    command.printed("savepoint", "list", data)
    command.printed("savepoint", "delete", data, "one")
    assert "no savepoint 'one'; it has none" in command.refused("savepoint", "delete", data, "one")
