"""P0, recovery: check tables without writes, fence the predecessor, roll decided groups forward from their intents."""

import pytest
from store_cases import INCARNATION, TOPOLOGY, add, commit, intent_of, open_store, record

from txstorm.clients.delta.entry import Commit
from txstorm.clients.delta.handle import DeltaHandle
from txstorm.errors import DataDirectoryError, FencedError, TableCorrupt
from txstorm.recovery.take_over import check_tables, check_txids, raise_epochs, roll_forward
from txstorm.results.read import read_sink, read_state
from txstorm.storage.tables.identity import TopologyIdentity, table_ref
from txstorm.storage.tables.intent import decode, encode
from txstorm.storage.tables.table import DeltaTableState

OWNER = TopologyIdentity(TOPOLOGY, INCARNATION)
AT_ONE = {"changes/counts": 1, "changes/totals": 1, "sinks/out": 1}
STATES = ["state/counts", "state/totals"]


@pytest.fixture
def decided(tmp_path):
    """Create tables in which txid 1 is complete; return the intent of txid 2, decided but not published."""
    store = open_store(tmp_path, create=True)
    commit(store, 1, {"a": 1})
    group = store.group(2)
    add(group, 2, {"a": 1})
    return decode(encode(intent_of(group, [record(2)])))


def check(data_dir, recorded=AT_ONE, live=()):
    check_tables(data_dir, recorded, INCARNATION, live)


def snapshot(data_dir):
    return {file: file.stat().st_mtime_ns for file in data_dir.rglob("*")}


def test_valid_tables_pass_without_writes_and_a_live_intent_explains_those_that_are_ahead(tmp_path, decided):
    before = snapshot(tmp_path)
    check(tmp_path)
    check(tmp_path, live=[decided])
    assert snapshot(tmp_path) == before
    open_store(tmp_path).publish(decided, 1)
    check(tmp_path, live=[decided])
    with pytest.raises(TableCorrupt, match="changes/counts: the ledger expects it at txid 1, found 2"):
        check(tmp_path)
    check(tmp_path, dict.fromkeys(AT_ONE, 2), [decided])  # a retained intent of a complete group


@pytest.mark.parametrize("recorded", [2, 3])
def test_a_table_behind_the_ledger_or_of_another_incarnation_is_rejected(tmp_path, decided, recorded):
    with pytest.raises(TableCorrupt, match=f"sinks/out: the ledger expects it at txid {recorded}, found 1"):
        check(tmp_path, {"sinks/out": recorded}, [decided])
    with pytest.raises(DataDirectoryError, match="incarnation 0a1b2c; expected 'x', incarnation ffff"):
        check_tables(tmp_path, AT_ONE, "ffff", [], topology="x")


def test_a_table_that_advanced_while_epochs_were_raised(tmp_path, decided):
    check(tmp_path)
    open_store(tmp_path).publish(decided, 1)
    tables = raise_epochs(tmp_path, AT_ONE, OWNER, 2)
    assert {table.ref.uri: table.epoch() for table in tables} == dict.fromkeys([*AT_ONE, *STATES], 2)
    check_txids(tables, AT_ONE, [decided])
    with pytest.raises(TableCorrupt, match="changes/counts: the ledger expects it at txid 1, found 2"):
        check_txids(tables, AT_ONE, [])


def test_a_takeover_fences_the_old_coordinator_on_every_table(tmp_path, decided):
    old = open_store(tmp_path)
    raise_epochs(tmp_path, AT_ONE, OWNER, 2)
    with pytest.raises(FencedError):
        old.publish(decided, 1)
    for uri in ("changes/counts", "state/counts", "changes/totals", "state/totals", "sinks/out"):
        with pytest.raises(FencedError, match=uri):
            DeltaTableState.open(tmp_path, OWNER, table_ref(uri)).raise_epoch(1)
    with pytest.raises(FencedError):
        raise_epochs(tmp_path, AT_ONE, OWNER, 1)


def test_a_takeover_syncs_commits_of_its_predecessor(tmp_path, decided, monkeypatch):
    table = DeltaTableState.open(tmp_path, OWNER, table_ref("sinks/out"))
    handle = DeltaHandle.open(table.path)
    handle.commit(Commit({}, {"kind": "regroup", "timeline": 0}))  # the coordinator is then killed
    synced = []
    monkeypatch.setattr(
        DeltaTableState, "sync", lambda table, versions, again: synced.append((table.ref.uri, versions, again))
    )
    raise_epochs(tmp_path, AT_ONE, OWNER, 7)
    # Version 2 has txid 1, complete by the ledger and thus durable; later versions may not have been synced.
    # They are written again before the next one is committed.
    found = [one for one in synced if one[0] == "sinks/out"]
    assert found == [("sinks/out", range(3, 4), True), ("sinks/out", range(4, 5), False)]


def test_an_epoch_commit_is_synced_even_if_its_response_is_lost(tmp_path, decided, monkeypatch):
    commit_really, synced = DeltaHandle.commit, []

    def lost(handle, made):
        commit_really(handle, made)
        handle.version -= 1
        raise TableCorrupt("the answer is lost")

    monkeypatch.setattr(DeltaTableState, "sync", lambda table, versions, again: synced.extend(versions))
    table = DeltaTableState.open(tmp_path, OWNER, table_ref("sinks/out"))
    monkeypatch.setattr(DeltaHandle, "commit", lost)
    table.raise_epoch(7)
    assert synced[-1] == table.version


def test_rolled_forward_once_from_the_intent_alone(tmp_path, decided):
    raise_epochs(tmp_path, AT_ONE, OWNER, 2)
    versions = roll_forward(tmp_path, decided, 2)
    assert roll_forward(tmp_path, decided, 2) == versions
    raise_epochs(tmp_path, AT_ONE, OWNER, 3)
    assert roll_forward(tmp_path, decided, 3) == versions
    with pytest.raises(FencedError):  # a stale coordinator
        roll_forward(tmp_path, decided, 2)
    assert read_state(tmp_path, "counts").to_pylist() == [{"word": "a", "n": 2}]
    assert [row["_txid"] for row in read_sink(tmp_path, "out").to_pylist()] == [1, 2]


def test_a_store_opened_before_recovery_loads_the_rolled_forward_rows(tmp_path, decided):
    store = open_store(tmp_path, epoch=2)
    roll_forward(tmp_path, decided, 2)
    commit(store, 3, {"a": 1}, epoch=2)
    assert read_state(tmp_path, "counts").to_pylist() == [{"word": "a", "n": 3}]


@pytest.mark.parametrize("damage", ["missing", "short", "flipped"])
def test_damaged_staged_rows_are_never_published(tmp_path, decided, damage):
    file = tmp_path / decided.tables[0].uri / decided.tables[0].staged.path
    data = file.read_bytes()
    changed = {"missing": None, "short": data[:-1], "flipped": data[:30] + bytes([data[30] ^ 1]) + data[31:]}[damage]
    file.unlink()
    if changed is not None:
        file.write_bytes(changed)
    with pytest.raises(TableCorrupt, match=f"staged file .*{file.name}"):
        roll_forward(tmp_path, decided, 1)
    assert read_state(tmp_path, "counts").to_pylist() == [{"word": "a", "n": 1}]


def test_a_table_with_other_columns_is_not_appended_to(tmp_path, decided):
    from deltalake import DeltaTable, Field
    from deltalake.schema import PrimitiveType

    DeltaTable(str(tmp_path / "changes/counts")).alter.add_columns(Field("more", PrimitiveType("string")))
    with pytest.raises(TableCorrupt, match="changes/counts: differs from the rows to publish: column 'more'"):
        roll_forward(tmp_path, decided, 1)
