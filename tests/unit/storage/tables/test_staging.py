"""Staged files: durable, uniquely named, and checked before they are published."""

import json
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from table_steps import interrupted, synced_paths

from txstorm.api.state import CollectionState
from txstorm.errors import TableCorrupt
from txstorm.storage.rows.schema import changes_schema
from txstorm.storage.tables import staging
from txstorm.storage.tables.intent import Staged
from txstorm.storage.tables.staging import StagedName, checked_bytes, data_file, epoch_of, stage

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
