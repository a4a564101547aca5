"""Parquet footers: a flipped bit is detected and never changes the rows that are read."""

import pyarrow as pa
import pytest
from seeded import seeded

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


def test_written_rows_are_read_back_and_never_others_after_a_flipped_bit(staged):
    check_seal(staged)
    assert rows_of(staged).equals(ROWS)
    data = staged.read_bytes()
    for name in ("part-00000-4f3c.c000.snappy.parquet", "3-7-12345-my.count-all-0123456789abcdef.parquet"):
        other = staged.with_name(name)  # without a footer digest: not checked
        other.write_bytes(data)
        assert rows_of(other).equals(ROWS)
    rng, data, refused = seeded(), staged.read_bytes(), 0
    for at in range(len(data)):
        staged.write_bytes(data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :])
        try:
            found = rows_of(staged)
            found.validate(full=True)
            assert found.equals(ROWS), f"byte {at}"
        except (OSError, pa.ArrowException):
            refused += 1
    assert refused > len(data) * 3 / 4


def renamed(data):
    at = data.index(b"word", data.index(b"schema"))
    return data[:at] + b"wore" + data[at + 4 :]


@pytest.mark.parametrize("damaged", [renamed, *(lambda data, left=left: data[:left] for left in (0, 5, 11, 300))])
def test_a_renamed_column_and_a_truncated_file_are_refused(staged, damaged):
    """A column of another name is not read as null."""
    staged.write_bytes(damaged(staged.read_bytes()))
    with pytest.raises(pa.ArrowInvalid, match="its footer is not the one that was written"):
        rows_of(staged)


def test_a_footer_longer_than_the_first_read(tmp_path):
    wide = pa.table({f"column_{number}": [number] for number in range(2000)} | {"_txid": [1]})
    file = tmp_path / stage(tmp_path, wide, NAME).path
    check_seal(file)
    data = bytearray(file.read_bytes())
    data[-100_000] ^= 1
    file.write_bytes(data)
    with pytest.raises(pa.ArrowInvalid, match="footer"):
        check_seal(file)
