"""Footers of Parquet files: no corrupted bit may lead to different rows being read."""

import random

import pyarrow as pa
import pytest

from txstorm.clients.delta.data_files import Selected, Wanted
from txstorm.clients.delta.footer_digest import check_seal
from txstorm.storage.tables.staging import StagedName, stage

ROWS = pa.table({"word": ["cat", "dog", None], "n": [8, 7, 2], "_txid": [1, 1, 2], "_op": ["u", "u", "d"]})
NAME = StagedName(3, 7, 12345, "my.count", "all")


@pytest.fixture
def staged(tmp_path):
    return tmp_path / stage(tmp_path, ROWS, NAME).path


def rows_of(file):
    actions = pa.table({"path": [file.name], "size_bytes": [file.stat().st_size]})
    return Selected(file.parent, ROWS.schema, actions, Wanted()).table()


def test_what_was_written_is_read(staged):
    check_seal(staged)
    assert rows_of(staged).equals(ROWS)


def test_no_flipped_bit_is_read_as_other_rows(staged):
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng, data, refused = random.Random(seed), staged.read_bytes(), 0
    for at in range(len(data)):
        staged.write_bytes(data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :])
        try:
            found = rows_of(staged)
            found.validate(full=True)
            assert found.equals(ROWS), f"byte {at}"
        except (OSError, pa.ArrowException):
            refused += 1
    assert refused > len(data) * 3 / 4


def test_a_renamed_column_is_refused_and_not_read_as_null(staged):
    data = staged.read_bytes()
    at = data.index(b"word", data.index(b"schema"))
    staged.write_bytes(data[:at] + b"wore" + data[at + 4 :])
    with pytest.raises(pa.ArrowInvalid, match="its footer is not the one that was written"):
        rows_of(staged)


@pytest.mark.parametrize("left", [0, 5, 11, 300])
def test_a_file_that_was_cut_off(staged, left):
    staged.write_bytes(staged.read_bytes()[:left])
    with pytest.raises(pa.ArrowInvalid, match="its footer is not the one that was written"):
        rows_of(staged)


def test_a_footer_longer_than_what_is_read_at_first(tmp_path):
    wide = pa.table({f"column_{number}": [number] for number in range(2000)} | {"_txid": [1]})
    file = tmp_path / stage(tmp_path, wide, NAME).path
    check_seal(file)
    data = bytearray(file.read_bytes())
    data[-100_000] ^= 1
    file.write_bytes(data)
    with pytest.raises(pa.ArrowInvalid, match="footer"):
        check_seal(file)


def test_files_without_a_seal_are_read_as_they_are(staged):
    data = staged.read_bytes()
    for name in ("part-00000-4f3c.c000.snappy.parquet", "3-7-12345-my.count-all-0123456789abcdef.parquet"):
        other = staged.with_name(name)
        other.write_bytes(data)
        assert rows_of(other).equals(ROWS)
