"""Spill files: committers' input that is too large to travel through Spark, as Arrow files in the data directory."""

from __future__ import annotations

import os
import re
import uuid
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from txstorm.api.attempt import EPOCH_BITS
from txstorm.engine.cargo import Cargo, Kind

_NAME = re.compile(r"[0-9]+-[0-9]+-")


def spill(cargo: Cargo, directory: Path) -> Cargo:
    """Write the rows of `cargo` to a new, uniquely named file; return cargo that contains only the file name."""
    name = f"{cargo.txid}-{cargo.attempt_id}-{cargo.edge}-{cargo.source}-{uuid.uuid4().hex}.arrow"
    path = directory / name
    assert cargo.batch is not None
    with pa.OSFile(os.fspath(path), "wb") as sink, pa.ipc.new_file(sink, cargo.batch.schema) as writer:
        writer.write_batch(cargo.batch)
    data = {"file": name, "rows": cargo.batch.num_rows, "bytes": cargo.batch.nbytes}
    return replace(cargo, kind=Kind.SPILLED, batch=None, data=data)


def sweep_spilled(directory: str | None, upto: int | None, epoch: int | None = None) -> None:
    """Remove the files of SPILLED cargo of committed txids up to `upto`, regardless of the attempt that wrote them.

    A task whose attempt was abandoned, or whose pack failed elsewhere, leaves behind files unknown to the driver.

    Args:
        directory: the spill directory; None: there is none.
        upto: the last committed txid; None: remove the files of all txids.
        epoch: the coordinator's epoch: files of attempts of a later coordinator are kept, since this one may be fenced;
            None: there is only one.
    """
    if directory is None:
        return
    with os.scandir(directory) as files:
        names = [(*file.name.split("-", 2), file.path) for file in files if _NAME.match(file.name)]
    for txid, attempt, *_, path in names:
        if (upto is None or int(txid) <= upto) and (epoch is None or int(attempt) >> EPOCH_BITS <= epoch):
            Path(path).unlink(missing_ok=True)


def unspill(cargo: Cargo, directory: Path) -> pa.RecordBatch:
    """Memory-map the rows of SPILLED cargo from their file."""
    with pa.memory_map(os.fspath(directory / cargo.data["file"])) as source:
        return pa.ipc.open_file(source).get_batch(0)
