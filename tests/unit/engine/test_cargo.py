"""Cargo is unchanged by serialization, regardless of the memory alignment of its bytes."""

import pyarrow as pa
import pytest

from txstorm.engine.cargo import Cargo, Kind, decode, encode

BATCH = pa.record_batch({"word": ["a", None, "ccc"], "n": [1, 2, 3], "x": [0.5, None, 1.5]})


def at_offset(data: bytes, by: int) -> pa.Buffer:
    """Return `data` at an address `by` bytes past an aligned one."""
    whole = pa.allocate_buffer(len(data) + by)
    memoryview(whole).cast("B")[by:] = data
    return whole.slice(by)


def buffers(batch: pa.RecordBatch) -> list[pa.Buffer]:
    return [buffer for column in batch.columns for buffer in column.buffers() if buffer is not None]


@pytest.mark.parametrize("by", range(9))
def test_rows_are_aligned_as_their_type_requires(by: int):
    cargo = decode(at_offset(encode(Cargo(Kind.DATA, 7, 1, 2, 3, 4, 5, batch=BATCH)), by))
    assert (cargo.kind, cargo.txid, cargo.attempt_id, cargo.order, cargo.target) == (Kind.DATA, 7, 1, (2, 3, 5), 4)
    assert cargo.batch == BATCH
    assert [buffer.address % 8 for buffer in buffers(cargo.batch)] == [0] * len(buffers(BATCH))


def test_aligned_rows_are_not_copied():
    data = at_offset(encode(Cargo(Kind.DATA, 7, 1, 2, 3, 4, 5, batch=BATCH)), 0)
    found = buffers(decode(data).batch)
    assert all(data.address <= buffer.address < data.address + data.size for buffer in found)


@pytest.mark.parametrize("text", ["", "x", "ab\n ", "seven77"])
def test_data_after_a_report_of_any_length_is_aligned(text: str):
    data = encode(Cargo(Kind.RESULT, 7, 1, 2, 3, 4, 5, data={"text": text}))
    assert len(data) % 8 == 0
    assert decode(pa.py_buffer(data)).data == {"text": text}
