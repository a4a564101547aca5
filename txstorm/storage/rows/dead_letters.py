"""Schema of dead letters: the failed tuple or record, the component that failed, and the error."""

from __future__ import annotations

import pyarrow as pa

TUPLE, METADATA, RECORD = "tuple", "metadata", "record"
"""Values of the column ``what``: what has failed."""

SCHEMA = pa.schema(
    [
        ("component", pa.string()),
        ("task", pa.int64()),
        ("source", pa.string()),
        ("source_task", pa.int64()),
        ("stream", pa.string()),
        ("what", pa.string()),
        ("record", pa.string()),
        ("kind", pa.string()),
        ("type", pa.string()),
        ("message", pa.string()),
        ("frame", pa.string()),
    ]
)
"""Schema of dead letters as created by tasks: component, failed tuple or record, and error; see docs/formats.md."""

SENT_SCHEMA = pa.schema([*SCHEMA, ("column", pa.string())])
"""Schema of dead letters on their way to the driver: also the column whose declared type a value does not fit."""

TABLE_SCHEMA = pa.schema([*SCHEMA, ("attempt", pa.int64()), ("stamp", pa.timestamp("us", tz="UTC"))])
