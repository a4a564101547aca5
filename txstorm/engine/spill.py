"""Spill files: committers' input that is too large to travel through Spark, as Arrow files in the data directory."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import pyarrow as pa

from txstorm.engine.cargo import Cargo, Kind


def spill(cargo: Cargo, directory: Path) -> Cargo:
    """Write the rows of `cargo` to a new, uniquely named file; return cargo that contains only the file name."""
    name = f"{cargo.txid}-{cargo.attempt_id}-{cargo.edge}-{cargo.source}-{uuid.uuid4().hex}.arrow"
    path = directory / name
    assert cargo.batch is not None
    with pa.OSFile(os.fspath(path), "wb") as sink, pa.ipc.new_file(sink, cargo.batch.schema) as writer:
        writer.write_batch(cargo.batch)
    return Cargo(
        Kind.SPILLED,
        cargo.txid,
        cargo.attempt_id,
        cargo.edge,
        cargo.source,
        cargo.target,
        cargo.sequence,
        data={"file": name, "rows": cargo.batch.num_rows, "bytes": cargo.batch.nbytes},
    )


def sweep_spilled(directory: str | None, upto: int) -> None:
    """Remove the files of SPILLED cargo of committed txids up to `upto`, regardless of the attempt that wrote them.

    A task whose attempt was abandoned, or whose pack failed elsewhere, leaves behind files unknown to the driver.
    """
    if directory is None:
        return
    with os.scandir(directory) as files:
        names = [(file.name.partition("-")[0], file.path) for file in files]
    for txid, path in names:
        if txid.isdecimal() and int(txid) <= upto:
            Path(path).unlink(missing_ok=True)


def unspill(cargo: Cargo, directory: Path) -> pa.RecordBatch:
    """Memory-map the rows of SPILLED cargo from their file."""
    with pa.memory_map(os.fspath(directory / cargo.data["file"])) as source:
        return pa.ipc.open_file(source).get_batch(0)
