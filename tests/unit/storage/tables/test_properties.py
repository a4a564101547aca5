"""Table properties for other readers and writers: set on creation, and on existing tables at the next start."""

import json

import pytest
from deltalake import DeltaTable
from store_cases import INCARNATION, TOPOLOGY, commit, open_store
from table_steps import history_row, words_read

from txstorm.clients.delta.archive import log_bound
from txstorm.clients.delta.handle import DeltaHandle
from txstorm.errors import FencedError
from txstorm.storage.tables import identity as properties
from txstorm.storage.tables.declared import DeclaredTable
from txstorm.storage.tables.history import append_history
from txstorm.storage.tables.identity import TableRef, TopologyIdentity
from txstorm.storage.tables.table import DeltaTableState

RETENTION, CLEANUP = "delta.logRetentionDuration", "delta.enableExpiredLogCleanup"
TABLES = ["changes/counts", "state/counts", "changes/totals", "state/totals", "sinks/out"]
OUT = TableRef("sink", "out")


def found(data_dir, uri="sinks/out"):
    return DeltaTable(str(data_dir / uri)).metadata().configuration


def version(data_dir, uri="sinks/out"):
    return DeltaTable(str(data_dir / uri)).version()


@pytest.fixture
def old(tmp_path, monkeypatch):
    """Return a data directory whose tables were created without the properties under test."""
    with monkeypatch.context() as patch:
        patch.setattr(DeclaredTable, "promised", lambda *_: {})
        patch.setattr("txstorm.state.store.log_properties", lambda *_: {})
        patch.setattr("txstorm.state.store.recorded_properties", dict)
        patch.setattr("txstorm.storage.tables.history.recorded", lambda _: {})
        store = open_store(tmp_path, create=True)
        commit(store, 1, {"a": 1})
        append_history(tmp_path, [history_row(1)])
        store.close()
    assert RETENTION not in found(tmp_path)
    assert RETENTION not in found(tmp_path, "history")
    return tmp_path


def test_new_tables_have_the_properties_from_their_first_version(tmp_path):
    open_store(tmp_path, create=True, log_retention=7200.0)
    for uri in TABLES:
        first = json.loads((tmp_path / uri / "_delta_log" / f"{0:020d}.json").read_text().splitlines()[2])
        assert first["metaData"]["configuration"][RETENTION] == "interval 2 hours"
        assert found(tmp_path, uri)[CLEANUP] == "false"


def test_existing_tables_get_the_properties_once_and_they_follow_the_setting(old):
    before = {uri: version(old, uri) for uri in [*TABLES, "history"]}
    for epoch in (2, 3):
        open_store(old, epoch=epoch)
        for uri in [*TABLES, "history"]:
            assert found(old, uri)[RETENTION] == "interval 1 days"
            assert found(old, uri)[CLEANUP] == "false"
            raised = 0 if uri == "history" else epoch - 1
            assert version(old, uri) == before[uri] + raised + 1
    store = open_store(old, epoch=4)
    commit(store, 2, {"a": 1}, epoch=4)
    store.close()
    assert words_read(old) == {"a": 2}
    for epoch, (seconds, text) in enumerate([(90.5, "91 seconds"), (3600, "1 hours"), (600, "10 minutes")], start=5):
        open_store(old, epoch=epoch, log_retention=seconds)
        assert found(old)[RETENTION] == f"interval {text}"


def test_a_bound_of_entries_lowers_the_promise_in_the_same_commit(old):
    """Of the tables of states, and of sinks that are named; a table whose user promises a time is not bounded."""
    open_store(old, epoch=2)
    theirs = {RETENTION: "interval 5 days"}
    DeltaTable(str(old / "state/counts")).alter.set_table_properties(theirs, raise_if_not_exists=False)
    for epoch, (entries, bounded) in enumerate([({None: 1000}, False), ({None: 1000, "out": 5000}, True)], start=3):
        before = version(old, "changes/counts")
        open_store(old, epoch=epoch, log_entries=entries, log_retention=3600)
        assert log_bound(found(old, "changes/counts")) == (1000, 3600)
        assert version(old, "changes/counts") == before + 2 - bounded  # epoch and, once, the properties
        assert log_bound(found(old, "state/counts")) == (None, 5 * 86_400)
        assert log_bound(found(old, OUT.uri)) == ((5000, 3600) if bounded else (None, 3600))
    open_store(old, epoch=5)
    assert log_bound(found(old, "changes/counts")) == (None, 86_400)


@pytest.mark.parametrize("when", ["before txstorm sets it", "over what txstorm has set"])
def test_properties_set_by_a_user_are_kept(old, when):
    if when.startswith("over"):
        open_store(old, epoch=2)
    theirs = {RETENTION: "interval 5 days"}
    DeltaTable(str(old / OUT.uri)).alter.set_table_properties(theirs, raise_if_not_exists=False)
    open_store(old, epoch=3, log_retention=60)
    assert found(old)[RETENTION] == "interval 5 days"
    assert found(old)[CLEANUP] == "false"
    assert found(old, "changes/counts")[RETENTION] == "interval 1 minutes"


def test_a_stale_coordinator_sets_nothing_and_a_commit_of_another_writer_in_between_is_not_lost(old):
    stale = open_store(old, epoch=2, log_retention=60)
    open_store(old, epoch=3)
    with pytest.raises(FencedError):
        stale.tables[OUT].set_properties(properties.log_properties(5), 2)
    assert found(old)[RETENTION] == "interval 1 days"
    owner = TopologyIdentity(TOPOLOGY, INCARNATION)
    table = DeltaTableState.open(old, owner, OUT)
    DeltaTable(str(old / OUT.uri)).alter.set_table_properties({"theirs": "1"}, raise_if_not_exists=False)
    table.set_properties(properties.log_properties(5), 3)
    assert {**found(old), "theirs": "1"} == found(old)
    assert found(old)[RETENTION] == "interval 5 seconds"


def test_the_entry_has_a_checksum_and_later_commits_continue(old):
    store = open_store(old, epoch=2)
    commit(store, 2, {"b": 1}, epoch=2)
    store.close()
    infos = DeltaHandle.open(old / "changes/counts").checked_infos()
    assert [info["kind"] for info in infos][-3:] == ["epoch", "describe", "commit"]
    entry = old / "changes/counts/_delta_log" / f"{version(old, 'changes/counts') - 1:020d}.json"
    entry.write_text(entry.read_text().replace("interval 1 days", "interval 9 days"))
    with pytest.raises(Exception, match="checksum"):
        open_store(old, epoch=3)


@pytest.mark.parametrize("note", ["no JSON", "[1]", "[" * 100_000])
def test_a_malformed_record_of_set_properties_is_ignored(note):
    kept = properties.due({properties.SET: note, RETENTION: "interval 1 days"}, {RETENTION: "interval 2 days"})
    assert not kept
