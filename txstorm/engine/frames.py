"""Input of a frame spout: the DataFrames of a pack, as one with a partition for each task, and a task's share of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import reduce
from typing import Any

import pyarrow as pa

from txstorm.ddl import RESERVED
from txstorm.engine.port import Pack

TXID = f"{RESERVED}txid"
_TIME = pa.timestamp("us", "UTC")


def together(session: Any, pack: Pack, columns: Mapping[str, str], tasks: int) -> Any:
    """Return one DataFrame with all rows of `pack`, in exactly `tasks` partitions, without a shuffle.

    A last column has the txid. One row for each task, without a txid, makes that there are enough partitions, which
    cannot be asked for: adaptive execution decides on them as it goes.

    Args:
        session: the session.
        pack: the inputs have functions that return their DataFrames.
        columns: name → type, as Spark writes it.
        tasks: number of tasks.
    """
    quoted = [f"`{name.replace('`', '``')}`" for name in columns]
    parts = [
        one.payload(session).selectExpr(*quoted, f"CAST({one.attempt.txid} AS BIGINT) AS {TXID}") for one in pack.inputs
    ]
    nulls = [f"CAST(NULL AS {kind}) AS {name}" for name, kind in zip(quoted, columns.values(), strict=True)]
    markers = parts[0].sparkSession.range(0, tasks, 1, tasks).selectExpr(*nulls, f"CAST(NULL AS BIGINT) AS {TXID}")
    return reduce(lambda one, other: one.union(other), [*parts, markers]).coalesce(tasks)


def with_rows(pack: Pack, batches: Iterable[pa.RecordBatch]) -> Pack:
    """Return `pack` with each input's share of the rows in `batches`, those of one partition, as its payload."""
    rows: dict[int, list[pa.RecordBatch]] = defaultdict(list)
    for batch in batches:
        txids, found = batch.column(batch.num_columns - 1), plain(batch.drop_columns(TXID))
        for txid in txids.unique().drop_null().to_pylist():
            mine = found.filter(pa.compute.equal(txids, txid)) if len(pack.inputs) > 1 or txids.null_count else found
            rows[txid].append(mine)
    return replace(pack, inputs=tuple(replace(one, payload=rows[one.attempt.txid]) for one in pack.inputs))


def plain(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return `batch` with the types of its columns as the tables of txstorm have them: times in UTC, short offsets."""
    schema = pa.schema([pa.field(field.name, _plain(field.type)) for field in batch.schema])
    return batch if schema == batch.schema else batch.cast(schema)


def _plain(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return _TIME
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_plain(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(part.name, _plain(part.type)) for part in (kind.field(i) for i in range(kind.num_fields))])
    return kind
