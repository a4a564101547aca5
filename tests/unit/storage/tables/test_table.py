"""One Delta table: owner, epoch, staged files, and publishing (R4) once, in order, and by the leading coordinator."""

import json
import os
import shutil
from dataclasses import replace
from itertools import pairwise

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from store_cases import COUNTS, INCARNATION, TOPOLOGY, commit, open_store, record
from table_steps import decided, interrupted, synced_paths

from txstorm.api.state import CollectionState
from txstorm.books.rewind import Rewind, RewoundTable
from txstorm.clients.delta import log as delta_log
from txstorm.clients.delta.entry import Commit
from txstorm.clients.delta.handle import DeltaHandle
from txstorm.errors import BlockedError, ConflictError, DataDirectoryError, FencedError, TableCorrupt
from txstorm.recovery.rewind import restore_table
from txstorm.storage.rows.schema import changes_schema
from txstorm.storage.tables import staging
from txstorm.storage.tables.identity import TableRef, TopologyIdentity
from txstorm.storage.tables.intent import Staged
from txstorm.storage.tables.staging import StagedName, checked_bytes, data_file, epoch_of, stage
from txstorm.storage.tables.table import DeltaTableState

OWNER = TopologyIdentity(TOPOLOGY, INCARNATION)
REF = TableRef("changes", "counts")


@pytest.fixture
def store(tmp_path):
    return open_store(tmp_path, create=True)


@pytest.fixture
def intent(store):
    """Return the intent of txid 1, which is not yet published."""
    return decided(store, 1, {"a": 1})[1]


def opened(data_dir, owner=OWNER):
    return DeltaTableState.open(data_dir, owner, REF)


def publish(table, intent, epoch=1):
    return table.publish(1, intent.tables[0], intent, epoch)


def data_commits(data_dir):
    return [info["last"] for _, info in opened(data_dir).commits()]


def test_any_delta_reader_can_read_the_table_and_its_commit_info_describes_the_commit(tmp_path, store):
    from deltalake import DeltaTable

    commit(store, 1, {"a": 1, "b": 2})
    table = DeltaTable(str(tmp_path / "changes/counts"))
    protocol = table.protocol()
    assert (protocol.min_reader_version, protocol.min_writer_version) == (1, 2)
    rows = table.to_pyarrow_table(columns=["word", "n", "_txid", "_op"]).sort_by("word").to_pylist()
    assert rows == [{"word": "a", "n": 1, "_txid": 1, "_op": "u"}, {"word": "b", "n": 2, "_txid": 1, "_op": "u"}]
    assert table.history()[0]["userMetadata"] == "txstorm txids 1 to 1"
    group, intent = decided(store, 2, {})  # changes nothing in `counts`
    assert [table.uri for table in intent.tables] == ["changes/totals"]
    store.publish(intent, 1)
    group.apply(2)
    commit(store, 3, {"a": 1}, {"b": 1})
    version, info = next(opened(tmp_path).commits())
    assert (info["first"], info["last"], info["epoch"], info["timeline"]) == (2, 4, 1, 0)
    assert (info["topology"], info["incarnation"]) == (TOPOLOGY, INCARNATION)
    assert info["txids"] == [record(3).to_json(), record(4).to_json()]
    assert version == opened(tmp_path).version


@pytest.mark.parametrize("point", ["p7.1.before", "p7.1.written", "p7.1.after"])
def test_publishing_once_despite_faults_and_repetitions(tmp_path, store, intent, point):
    table = opened(tmp_path)
    with interrupted(point):
        publish(table, intent)
    version = publish(opened(tmp_path), intent)
    # Also by the handle that does not know of its own commit, or of the other one.
    assert publish(table, intent) == publish(opened(tmp_path), intent) == version == opened(tmp_path).version
    assert data_commits(tmp_path) == [1]


def test_a_published_txid_is_found_below_later_commits(tmp_path, store):
    first = commit(store, 1, {"a": 1})
    commit(store, 2, {"a": 1})
    opened(tmp_path).raise_epoch(2)
    assert publish(opened(tmp_path), first, epoch=2) == opened(tmp_path).version - 2


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"attempt": 11}, r"changes/counts.*\(1, 11, 'd1'\).*\(1, 10, 'd1'\)"),
        ({"digest": "x"}, "changes/counts.*other content"),
    ],
    ids=["attempt", "input"],
)
def test_another_attempt_or_input_of_a_published_txid_is_an_error(tmp_path, store, intent, other, message):
    publish(opened(tmp_path), intent)
    with pytest.raises(TableCorrupt, match=message):
        publish(opened(tmp_path), replace(intent, txids=(record(1, **other),)))


def test_another_previous_txid_is_an_error(tmp_path, store):
    commit(store, 1, {"a": 1}, {"b": 1}, {"c": 1})
    _, later = decided(store, 5, {"a": 1})
    wrong = replace(later, tables=(replace(later.tables[0], previous=4),))
    with pytest.raises(TableCorrupt, match="expected to be at txid 4 before txids 5 to 5 are published, found it at 3"):
        publish(opened(tmp_path), wrong)
    with pytest.raises(TableCorrupt, match="past txid 2, but no version of it ends there"):
        publish(opened(tmp_path), replace(later, txids=(record(2),)))


def test_a_stale_coordinator_is_fenced(tmp_path, store, intent):
    stale = opened(tmp_path)
    opened(tmp_path).raise_epoch(2)
    with pytest.raises(FencedError, match=r"changes/counts.*epoch 2.*epoch 1"):
        publish(stale, intent)  # its handle does not know of the new epoch: the compare-and-set fails
    assert data_commits(tmp_path) == []
    publish(opened(tmp_path), intent, epoch=2)  # the new coordinator rolls it forward
    assert data_commits(tmp_path) == [1]


def test_a_commit_is_a_compare_and_set_even_without_a_logical_conflict(tmp_path, store):
    one, two = (DeltaHandle.open(tmp_path / "changes/counts") for _ in range(2))
    one.commit(Commit({"x": 1}, {}))
    with pytest.raises(ConflictError, match="expected version 1 to be the newest"):
        two.commit(Commit({"y": 1}, {}))
    two.refresh()
    two.commit(Commit({"y": 1}, {}))


def test_epochs_only_increase_by_commits_that_repeat_the_txid(tmp_path, store):
    commit(store, 1, {"a": 1})
    table = opened(tmp_path)
    table.raise_epoch(7)
    version = table.version
    table.raise_epoch(7)
    assert (table.epoch(), table.version, table.last_txid()) == (7, version, 1)
    entry = (tmp_path / f"changes/counts/_delta_log/{version:020d}.json").read_text().splitlines()
    transactions = {line["txn"]["appId"]: line["txn"]["version"] for line in map(json.loads, entry) if "txn" in line}
    assert transactions == {f"txstorm/{INCARNATION}/0/changes-counts": 1, f"txstorm/{INCARNATION}/epoch": 7}
    for stale in (table, store):
        with pytest.raises(FencedError):
            stale.raise_epoch(6)


def test_log_entries_are_synced_before_publishing_returns(tmp_path, store, intent, monkeypatch):
    table = opened(tmp_path)
    with synced_paths(monkeypatch) as synced:
        version = publish(table, intent)
    log = tmp_path / "changes/counts/_delta_log"
    entry, [bytes_, names] = log / f"{version:020d}.json", synced
    # The bytes are synced before the file gets its name, so that a failed sync never leaves a visible entry.
    assert (os.path.dirname(bytes_), os.path.basename(bytes_)[:8], names) == (str(log), "_commit_", str(log))
    before, content = entry.stat(), entry.read_bytes()
    with synced_paths(monkeypatch) as synced:
        # The earlier coordinator may have died before the sync, or its sync may have failed.
        publish(opened(tmp_path), intent)
    assert (os.path.dirname(synced[0]), os.path.basename(synced[0])[:7], synced[1]) == (str(log), "_again_", str(log))
    after = entry.stat()
    assert (after.st_mtime_ns, after.st_mode, entry.read_bytes()) == (before.st_mtime_ns, before.st_mode, content)
    assert after.st_ino != before.st_ino


@pytest.mark.parametrize("how", ["start", "rewind"])
def test_every_version_is_synced_before_the_next_one_is_committed(how, tmp_path, intent, monkeypatch):
    with monkeypatch.context() as killed:  # between its commit and its sync
        killed.setattr(DeltaTableState, "sync", lambda table, versions, again: None)
        version = publish(opened(tmp_path), intent)
    calls = []
    commit, make_durable = DeltaHandle.commit, DeltaHandle.make_durable
    monkeypatch.setattr(DeltaHandle, "commit", lambda handle, made: (calls.append(None), commit(handle, made))[1])
    monkeypatch.setattr(
        DeltaHandle,
        "make_durable",
        lambda handle, versions, again: (calls.append(versions[-1]), make_durable(handle, versions, again=again))[1],
    )
    if how == "start":
        opened(tmp_path).raise_epoch(2)
    else:
        rewind = Rewind(OWNER.topology, INCARNATION, 1, 2, 0, None, ())
        restore_table(tmp_path, rewind, RewoundTable("changes/counts", 0, (), ()), 2, 0)
    assert calls == [version, None, version + 1]


def test_a_log_entry_emptied_by_a_power_failure_is_rewritten(tmp_path, store, intent):
    version = publish(opened(tmp_path), intent)
    (tmp_path / f"changes/counts/_delta_log/{version:020d}.json").write_bytes(b"")
    assert publish(opened(tmp_path), intent) == version + 1
    assert data_commits(tmp_path) == [1]


def test_a_table_that_vanishes_blocks(tmp_path, store, intent):
    table = opened(tmp_path)
    assert (table.epoch(), table.last_txid()) == (1, 0)  # the table still exists at this point
    (tmp_path / "changes/counts/_delta_log").rename(tmp_path / "away")
    with pytest.raises(BlockedError, match="table changes/counts: cannot commit to it"):
        publish(table, intent)
    (tmp_path / "away").rename(tmp_path / "changes/counts/_delta_log")  # the operator restores it
    publish(table, intent)
    assert data_commits(tmp_path) == [1]
    shutil.rmtree(tmp_path / "changes/counts")
    with pytest.raises(TableCorrupt, match="changes/counts: expected a Delta table, found none"):
        opened(tmp_path)


def test_a_staged_file_that_vanishes_is_named(tmp_path, store, intent):
    (tmp_path / "changes/counts" / intent.tables[0].staged.path).unlink()
    with pytest.raises(TableCorrupt, match="staged file"):
        publish(opened(tmp_path), intent)


def test_tables_of_another_owner_format_or_timeline_are_refused(tmp_path, store):
    with pytest.raises(DataDirectoryError, match="'words', incarnation 0a1b2c; expected 'other', incarnation ffff"):
        opened(tmp_path, TopologyIdentity("other", "ffff"))
    newer = {**OWNER.properties(), "txstorm.format": "2"}
    for name, schema, properties, message in (
        ("foreign", pa.schema([("word", pa.string())]), {}, "expected a table of txstorm, found a foreign one"),
        ("new", changes_schema(COUNTS), newer, "has format '2', this txstorm reads '1'"),
    ):
        DeltaHandle.create(tmp_path / "changes" / name, schema, properties, Commit({}, {}))
        with pytest.raises(DataDirectoryError, match=message):
            DeltaTableState.open(tmp_path, OWNER, TableRef("changes", name))
    with pytest.raises(DataDirectoryError, match="no txid on timeline 1"):
        opened(tmp_path, TopologyIdentity(TOPOLOGY, INCARNATION, 1)).last_txid()


def test_checkpoints_are_rare_if_only_a_start_reads_the_log(tmp_path, monkeypatch, store):
    monkeypatch.setattr(delta_log, "CHECKPOINT_EVERY", 2)
    monkeypatch.setattr(delta_log, "CHECKPOINT_MOST", 5)
    kept = opened(tmp_path)
    made = []
    for txid in range(1, 40):
        commit(store, txid, {"w": 1})
        kept.refresh()
        made += [kept.version] * (list((tmp_path / "changes/counts/_delta_log").glob(f"*{kept.version}.check*")) != [])
    steps = [later - one for one, later in pairwise(made)]
    assert steps == sorted(steps)
    assert (steps[0], steps[-1]) == (2, 5)


def test_checkpoints_stay_frequent_if_every_commit_reads_the_log(tmp_path, monkeypatch, store):
    monkeypatch.setattr(delta_log, "CHECKPOINT_EVERY", 2)
    monkeypatch.setattr(DeltaHandle, "is_plain", False)
    for txid in range(1, 30):
        commit(store, txid, {"w": 1})
    log = tmp_path / "changes/counts/_delta_log"
    assert len(list(log.glob("*.checkpoint.parquet"))) >= 14


def test_many_commits_with_checkpoints_between(tmp_path, store):
    for txid in range(1, 46):
        commit(store, txid, {f"w{txid % 7}": 1})
    log = tmp_path / "changes/counts/_delta_log"
    assert len(list(log.glob("*.checkpoint.parquet"))) == 2
    assert data_commits(tmp_path) == list(range(45, 0, -1))
    assert store.last_txids()["changes/counts"] == 45


ROWS = pa.table({"k": ["a", "b", "c"], "_txid": [5, 7, 6]})
NAME = StagedName(3, 7, 12345, "my-count", "all")


def test_staged_rows_are_read_back_unchanged_from_checked_files_named_after_their_writer(tmp_path):
    staged = stage(tmp_path, ROWS, NAME)
    assert pq.read_table(tmp_path / staged.path).equals(ROWS)
    assert (staged.rows, staged.first, staged.last) == (3, 5, 7)
    assert staged.size == (tmp_path / staged.path).stat().st_size
    expected = {"numRecords": 3, "minValues": {"_txid": 5}, "maxValues": {"_txid": 7}, "nullCount": {"_txid": 0}}
    assert json.loads(staged.stats) == expected
    checked_bytes(tmp_path, staged)
    assert Staged.from_json(json.loads(json.dumps(staged.to_json()))) == staged
    one, two = (stage(tmp_path, ROWS, NAME) for _ in range(2))
    assert one.path != two.path
    assert one.digest == two.digest  # the same rows give the same bytes
    name = one.path.rpartition("/")[2]
    assert name.startswith("3-7-12345-my-count-all-")
    assert epoch_of(name) == 3
    staged = stage(tmp_path, ROWS, NAME)
    data = bytearray((tmp_path / staged.path).read_bytes())
    data[20] ^= 1
    (tmp_path / staged.path).write_bytes(data)
    data_file(tmp_path, staged)
    with pytest.raises(TableCorrupt, match="expected digest"):
        checked_bytes(tmp_path, staged)


def test_long_runs_of_collections_get_row_groups_and_small_files_dictionaries_for_repeated_values():
    state = CollectionState("rows", key={"task": int}, order={"at": int}, value={"n": int})
    schema, size = changes_schema(state), staging.PLACED_ROWS + 1_000
    parts = [(0, "e", [3]), (0, "u", range(5, 5 + size)), (1, "e", [2]), (1, "u", range(9, 9 + size))]
    parts += [(task, "u", [task]) for task in range(2, 40)]  # short runs share a row group
    columns = {name: [] for name in schema.names}
    for task, op, places in parts:
        for at in places:
            row = {"task": task, "at": at, "n": at, "_op": op, "_seq": at, "_txid": 1, "_group": 0}
            for name, column in columns.items():
                column.append(row.get(name.replace("_key_group", "_group")))
    rows = pa.table({name: pa.array(column, schema.field(name).type) for name, column in columns.items()})
    file = pq.ParquetFile(pa.BufferReader(staging.encoded(rows)))
    groups = [file.read_row_group(number) for number in range(file.num_row_groups)]
    assert pa.concat_tables(groups).equals(rows.cast(file.schema_arrow))
    bounds = [(len(one), set(one["_op"].to_pylist()), len(set(one["task"].to_pylist()))) for one in groups]
    half, rest = size // 2, -(-size // 2)
    run = [(1, {"e"}, 1), (half, {"u"}, 1), (rest, {"u"}, 1)]
    assert bounds == [*run, *run, (38, {"u"}, 38)]

    def with_dictionary(rows):
        table = pa.table({"k": [f"k{i}" for i in range(rows)], "_txid": [5] * rows, "_op": ["u"] * rows})
        group = pq.ParquetFile(pa.BufferReader(staging.encoded(table))).metadata.row_group(0)
        columns = [group.column(i) for i in range(group.num_columns)]
        return [column.path_in_schema for column in columns if column.has_dictionary_page]

    assert with_dictionary(1_000) == ["_txid", "_op"]
    assert with_dictionary(5_000) == ["k", "_txid", "_op"]


@pytest.mark.parametrize(
    "name",
    ["part-0001.parquet", "3-7-1-c-all-aa.csv", "x-7-1-c-all-aa.parquet", "3-aa.parquet", "-7-1-c-all-a.parquet"],
)
def test_other_file_names_are_not_recognized(name):
    assert epoch_of(name) is None


def test_an_existing_file_name_is_rejected(tmp_path):
    stage(tmp_path, ROWS, NAME, unique=lambda: "same")
    with pytest.raises(FileExistsError):
        stage(tmp_path, ROWS, NAME, unique=lambda: "same")


def test_file_and_directory_are_synced_before_staging_returns(tmp_path, monkeypatch):
    with synced_paths(monkeypatch) as synced:
        staged = stage(tmp_path, ROWS, NAME)
    file = tmp_path / staged.path
    assert synced[-2:] == [str(file), str(file.parent)]
    assert synced[:-2] == [str(file.parent.parent), str(tmp_path)]  # the directories created for it


def test_fault_points(tmp_path):
    for point, files in (("before", 0), ("after", 1)):
        with interrupted(f"p5.staged.{point}"):
            stage(tmp_path, ROWS, NAME)
        assert len(list(tmp_path.glob(f"{staging.STAGED}/*"))) == files


@pytest.mark.parametrize(
    ("damage", "message"),
    [(os.unlink, "3-7-12345.*missing"), (lambda file: os.truncate(file, 9), "expected {size} bytes, found 9")],
    ids=["missing", "size"],
)
def test_a_missing_file_or_a_wrong_size_is_named(tmp_path, damage, message):
    staged = stage(tmp_path, ROWS, NAME)
    damage(tmp_path / staged.path)
    with pytest.raises(TableCorrupt, match=message.format(size=staged.size)):
        data_file(tmp_path, staged)
