"""Retained history of a topology: the recorded row of a txid, and how far back the history reaches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from txstorm.books.books import Books
from txstorm.errors import DataDirectoryError, InputError
from txstorm.results.views import read_directory_history


def history_row(directory: Path, timeline: int, txid: int) -> dict[str, Any]:
    """Read the history row of `txid` on `timeline` or an earlier timeline; stamps are UTC microseconds.

    If the txid was committed on several timelines, the row of the last one is returned, since the others were rolled
    back.

    Raises:
        DataDirectoryError: the history does not record the extents that `txid` has read from the source.
    """
    rows = read_directory_history(directory)
    rows = rows.set_column(rows.schema.get_field_index("stamp"), "stamp", rows["stamp"].cast(pa.int64()))
    for row in reversed(rows.filter(pc.field("txid") == txid).to_pylist()):
        if row["timeline"] <= timeline and row["extents"] not in (None, "null"):
            return {**row, "extents": json.loads(row["extents"])}
    msg = (
        f"{directory}: the history does not record what the source delivered for txid {txid}, so no run could continue "
        "after it; choose another txid, txstorm history shows those that are known"
    )
    raise DataDirectoryError(msg)


def check_in_history(directory: Path, books: Books, txid: int) -> None:
    """Raise `InputError` if `txid` is before the beginning of the retained history."""
    if txid < (kept := books.kept()):
        msg = (
            f"{directory}: txid {txid} is before the kept history, which begins with txid {kept} (history_retention); "
            f"ask for {kept} or later"
        )
        raise InputError(msg)
