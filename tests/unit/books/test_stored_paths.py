"""Paths stored in ledgers and logs are rejected if they lead outside their table's directory."""

import shutil
from dataclasses import replace

import pyarrow as pa
import pytest

from txstorm.books.rewind import Rewind, RewoundTable
from txstorm.clients.delta.entry import Commit, DataFile
from txstorm.clients.delta.handle import DeltaHandle
from txstorm.errors import LedgerCorrupt, TableCorrupt
from txstorm.storage.tables.intent import Intent, IntentTable, TxidRecord, encode_schema
from txstorm.storage.tables.staging import StagedName, checked_bytes, stage

ROWS = pa.table({"n": [1], "_txid": pa.array([1], pa.int64())})
PATHS = ["../../victim", "/tmp/victim", "file:///tmp/victim", "", None, 7]
PATHS += [f"_txstorm/staged/{path}" for path in ("../../../../victim", "", "..", "a/../../../b.parquet")]


@pytest.fixture
def staged(tmp_path):
    return stage(tmp_path / "maps/counts", ROWS, StagedName(1, 1, 1, "keep", "0"))


@pytest.fixture
def intent(staged):
    table = IntentTable("map", "counts", "maps/counts", encode_schema(ROWS.schema), 0, staged)
    return Intent("t", "i", 0, 1, (TxidRecord(1, 1, "", None, 0),), (table,))


def rewritten(intent, **fields):
    """Return the JSON of an intent, with `fields` replaced in its first table."""
    found = intent.to_json()
    found["tables"][0].update(fields)
    return found


@pytest.mark.parametrize("path", PATHS)
def test_an_intent_with_another_path_is_refused(intent, path):
    staged = {**intent.tables[0].staged.to_json(), "path": path}
    with pytest.raises(LedgerCorrupt, match="expected the path of a file in _txstorm/staged"):
        Intent.from_json(rewritten(intent, staged=staged))
    with pytest.raises(LedgerCorrupt, match="expected the path of a file in _txstorm/staged"):
        Intent.from_json(rewritten(intent, more=[staged]))


URIS = ["maps/../..", "/tmp", "maps", "maps/a/b", "", None, "maps/other", "state/counts"]
TABLES = [{"uri": uri} for uri in URIS] + [{"kind": "other"}, {"kind": "dead-letters"}]
TABLES += [{"name": "../counts", "uri": "maps/../counts"}, {"name": "", "uri": "maps/"}]


@pytest.mark.parametrize("table", TABLES, ids=str)
def test_an_intent_with_another_directory_is_refused(intent, table):
    with pytest.raises(LedgerCorrupt, match="expected a table of this data directory"):
        Intent.from_json(rewritten(intent, **table))


@pytest.mark.parametrize("path", ["../../victim", "/tmp/victim", "a/../../b", "file:/tmp/victim", None])
def test_a_rewind_with_another_path_is_refused(path):
    table = RewoundTable("sinks/out", 1, ("a.parquet",), (DataFile("b.parquet", 1),))
    rewind = Rewind("t", "i", 1, 1, 1, None, (table,))
    assert Rewind.from_json(rewind.to_json()) == rewind
    for other in (replace(table, removes=(path,)), replace(table, adds=(DataFile(path, 1),))):
        with pytest.raises(LedgerCorrupt, match="expected format 'txstorm-rewind'"):
            Rewind.from_json(replace(rewind, tables=(other,)).to_json())


@pytest.mark.parametrize("link", ["file", "directory"])
def test_a_staged_file_reached_through_a_link_is_rejected(tmp_path, staged, link):
    table, away = tmp_path / "maps/counts", tmp_path / "away"
    checked_bytes(table, staged)
    moved = table / staged.path if link == "file" else table / "_txstorm"
    shutil.move(moved, away)
    moved.symlink_to(away)
    with pytest.raises(TableCorrupt, match="symbolic link"):
        checked_bytes(table, staged)


def test_a_table_reached_through_a_link_is_accepted(tmp_path, staged):
    shutil.move(tmp_path / "maps", tmp_path / "away")
    (tmp_path / "maps").symlink_to(tmp_path / "away")
    checked_bytes(tmp_path / "maps/counts", staged)


@pytest.mark.parametrize("path", ["../victim.parquet", "{}/victim.parquet"])
def test_a_log_that_names_files_outside_its_table_is_rejected(tmp_path, path):
    import pyarrow.parquet as pq

    pq.write_table(ROWS, tmp_path / "victim.parquet")
    size = (tmp_path / "victim.parquet").stat().st_size
    handle = DeltaHandle.create(tmp_path / "table", ROWS.schema, {}, Commit({}, {"kind": "create"}))
    handle.commit(Commit({}, {"kind": "commit"}, [DataFile(path.format(tmp_path), size)]))
    for read in (handle.files, handle.read):
        with pytest.raises(TableCorrupt, match="expected a path below the table"):
            read()
