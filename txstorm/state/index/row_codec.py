"""Row codec: encode the rows of a state as bytes for the key index, whole columns at a time.

Keys are encoded by `txstorm.state.index.key_codec`. A row is a fixed-width record (txid, one null bit per value, then
the current and the previous values) followed by the content of values of variable length; its layout depends only on
the state's columns. `FORMAT` is the version of both encodings.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from txstorm.api.state import KeyedState
from txstorm.state.index.key_codec import NOTHING, PackedKeys, binary, key_bytes, packed_keys
from txstorm.storage.rows.forms import KeyForm, Value, ValueForm
from txstorm.storage.rows.update_rules import Stored
from txstorm.typed import python_values, restored

FORMAT = 1


class RowCodec:
    """Codec for the keys and rows of one state."""

    def __init__(self, state: KeyedState) -> None:
        self._keys = KeyForm(state)
        self._values = ValueForm(state)
        kinds = [column.field.type for column in self._values.stored]
        self._slots = [_Slot(f"{part}{i}", kind) for part in "vp" for i, kind in enumerate(kinds)]
        bits = len(self._slots) + 1  # the last one: no value before
        fields = [(slot.name, slot.stored) for slot in self._slots]
        self.record = np.dtype([("txid", "<i8"), ("nulls", "u1", ((bits + 7) // 8,)), *fields])

    @property
    def is_fixed(self) -> bool:
        """Whether rows consist of fixed-width records only."""
        return not any(slot.is_long for slot in self._slots)

    def packed(self, keys: Sequence[Any]) -> PackedKeys:
        """Encode canonical keys, of which there must be at least one, into one buffer."""
        return packed_keys(self._keys.arrays(keys), len(keys))

    def records(
        self, values: Sequence[Value], txids: Sequence[int], before: Sequence[Value | None]
    ) -> npt.NDArray[np.void]:
        """Like `rows`, but return fixed-width records; call only if `is_fixed`."""
        absent = np.fromiter((value is None for value in before), bool, len(before))
        return self._recorded(np.asarray(txids), [*self._values.arrays(values), *self._values.arrays(before)], absent)[
            0
        ]

    def records_of_table(self, table: pa.Table) -> tuple[PackedKeys, npt.NDArray[np.void]]:
        """Like `of_table`, but return packed keys and fixed-width records; call only if `is_fixed`.

        `table` must not be empty.
        """
        keys, txids, columns, absent = self._columns_of(table)
        return packed_keys(keys, table.num_rows), self._recorded(txids, columns, absent)[0]

    def of_records(self, records: npt.NDArray[np.void]) -> list[Stored]:
        """Decode fixed-width records; call only if `is_fixed`."""
        return self._decoded(records, ())

    def keys(self, keys: Sequence[Any]) -> list[bytes]:
        """Encode canonical keys as bytes."""
        return key_bytes(self._keys.arrays(keys), len(keys)) if keys else []

    def rows(self, values: Sequence[Value], txids: Sequence[int], before: Sequence[Value | None]) -> list[bytes]:
        """Encode rows, given their canonical values, their txids and their previous values."""
        absent = np.fromiter((value is None for value in before), bool, len(before))
        return self._encoded(np.asarray(txids), [*self._values.arrays(values), *self._values.arrays(before)], absent)

    def of_table(self, table: pa.Table) -> tuple[list[bytes], list[bytes]]:
        """Encode the keys and rows of a state or changes table; ignore the encoded rows of removed keys."""
        keys, txids, columns, absent = self._columns_of(table)
        return key_bytes(keys, table.num_rows), self._encoded(txids, columns, absent)

    def _columns_of(
        self, table: pa.Table
    ) -> tuple[list[pa.Array], npt.NDArray[Any], list[pa.Array], npt.NDArray[np.bool_]]:
        """Return key columns, txids, current and previous values, and a mask of rows without a previous value."""
        batch = table.combine_chunks()
        keys = [restored(_array(batch[column.name]), column.field.type) for column in self._keys.columns]
        values = [restored(_array(batch[column.name]), column.field.type) for column in self._values.stored]
        struct = _array(batch["_prev"])
        before = [restored(pc.struct_field(struct, [struct.type.get_field_index(column.name)]), column.field.type)
                  for column in self._values.stored]  # fmt: skip
        return keys, np.asarray(batch["_txid"]), [*values, *before], np.asarray(struct.is_null())

    def _encoded(
        self, txids: npt.NDArray[Any], columns: Sequence[pa.Array], absent: npt.NDArray[np.bool_]
    ) -> list[bytes]:
        record, contents = self._recorded(txids, columns, absent)
        made = binary(record)
        if contents:
            made = pc.binary_join_element_wise(made, *contents, NOTHING)
        encoded: list[bytes] = made.to_pylist()
        return encoded

    def _recorded(
        self, txids: npt.NDArray[Any], columns: Sequence[pa.Array], absent: npt.NDArray[np.bool_]
    ) -> tuple[npt.NDArray[np.void], list[pa.Array]]:
        """Build the fixed-width records, and the columns of variable-length content that follows them."""
        record = np.zeros(len(txids), self.record)
        record["txid"] = txids
        nulls = [*(np.asarray(column.is_null()) for column in columns), absent]
        record["nulls"] = np.packbits(np.stack(nulls, axis=1), axis=1)
        contents = []
        for slot, column in zip(self._slots, columns, strict=True):
            record[slot.name], content = slot.encode(column)
            if content is not None:
                contents.append(content)
        return record, contents

    def decode(self, rows: Sequence[bytes]) -> list[Stored]:
        """Decode encoded `rows` into tuples (value, txid, previous value)."""
        width = self.record.itemsize
        record = np.frombuffer(b"".join([row[:width] for row in rows]), self.record)
        return self._decoded(record, rows)

    def _decoded(self, record: npt.NDArray[np.void], rows: Sequence[bytes]) -> list[Stored]:
        """Decode records and the variable-length content that follows them in `rows`."""
        nulls = np.unpackbits(record["nulls"], axis=1, count=len(self._slots) + 1).astype(bool)
        columns, start = [], np.full(len(record), self.record.itemsize)
        for i, slot in enumerate(self._slots):
            columns.append(slot.decode(rows, record[slot.name], start, nulls[:, i]))
            if slot.is_long:
                start = start + record[slot.name]
        size = len(self._values.stored)
        values, before = zip(*columns[:size], strict=True), zip(*columns[size:], strict=True)
        absent = nulls[:, -1].tolist()
        return [
            (value, txid, None if gone else old)
            for value, txid, old, gone in zip(values, record["txid"].tolist(), before, absent, strict=True)
        ]


class _Slot:
    """One column's encoding: inline in the record or, if of variable length, after it with its length in the record."""

    def __init__(self, name: str, kind: pa.DataType) -> None:
        self.name = name
        self._kind = kind
        self._plain = _plain_type(kind)
        self.is_long = self._plain is None and not pa.types.is_decimal(kind)
        self.stored: Any = self._plain or (np.dtype("<u4") if self.is_long else np.dtype("V16"))

    def encode(self, column: pa.Array) -> tuple[npt.NDArray[Any], pa.Array | None]:
        """Encode the values of the column; return the part in the record, and the content after it.

        The content is None for a fixed-width column.
        """
        if self._plain is not None:
            return self._plain_values(column), None
        if not self.is_long:
            whole = np.frombuffer(column.buffers()[1], "V16") if len(column) else np.empty(0, "V16")
            return whole[column.offset : column.offset + len(column)], None
        content = self._contents(column)
        return np.asarray(pc.binary_length(content)), content

    def _plain_values(self, column: pa.Array) -> npt.NDArray[Any]:
        if pa.types.is_date32(self._kind):
            column = column.cast(pa.int32())
        elif pa.types.is_timestamp(self._kind):
            column = column.cast(pa.int64())
        elif pa.types.is_boolean(self._kind):
            column = column.cast(pa.int8())
        return np.asarray(column.fill_null(0))

    def _contents(self, column: pa.Array) -> pa.Array:
        if pa.types.is_string(self._kind) or pa.types.is_binary(self._kind):
            return column.cast(pa.binary()).fill_null(b"")
        batch = pa.record_batch([column], schema=self._schema())
        return pa.array([batch.slice(i, 1).serialize().to_pybytes() for i in range(len(column))], pa.binary())

    def decode(
        self, rows: Sequence[bytes], stored: npt.NDArray[Any], start: npt.NDArray[Any], nulls: npt.NDArray[np.bool_]
    ) -> list[Any]:
        """Decode the values of the column; `start`: the offset of this column's content in each row."""
        values = self._present(rows, stored, start)
        if not nulls.any():
            return values
        return [None if null else value for null, value in zip(nulls.tolist(), values, strict=True)]

    def _present(self, rows: Sequence[bytes], stored: npt.NDArray[Any], start: npt.NDArray[Any]) -> list[Any]:
        if not self.is_long:
            data = pa.py_buffer(np.ascontiguousarray(stored))
            if pa.types.is_boolean(self._kind):
                return list(map(bool, stored.tolist()))
            if pa.types.is_integer(self._kind) or pa.types.is_float64(self._kind):
                return list(stored.tolist())
            return python_values(pa.Array.from_buffers(self._kind, len(stored), [None, data]))
        ends = (start + stored).tolist()
        parts = [row[begin:end] for row, begin, end in zip(rows, start.tolist(), ends, strict=True)]
        if pa.types.is_binary(self._kind):
            return parts
        if pa.types.is_string(self._kind):
            return [part.decode() for part in parts]
        schema = self._schema()
        return [python_values(pa.ipc.read_record_batch(pa.py_buffer(part), schema)[0])[0] for part in parts]

    def _schema(self) -> pa.Schema:
        return pa.schema([pa.field("value", self._kind)])


def _plain_type(kind: pa.DataType) -> Any:
    """Return the NumPy type for an Arrow type of fixed width; None for other types."""
    if pa.types.is_boolean(kind):
        return np.dtype("i1")
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return np.dtype(kind.to_pandas_dtype())
    if pa.types.is_date32(kind):
        return np.dtype("<i4")
    return np.dtype("<i8") if pa.types.is_timestamp(kind) else None


def _array(column: pa.ChunkedArray) -> pa.Array:
    whole = column.combine_chunks()
    return pa.concat_arrays(whole.chunks) if isinstance(whole, pa.ChunkedArray) else whole
