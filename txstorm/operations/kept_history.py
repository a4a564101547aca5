"""Retained history of a topology: the row of a txid, the txid of a clock, and how far back the history reaches."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from txstorm.books.books import Books
from txstorm.books.data_directory import topology_in
from txstorm.books.records import clock_of
from txstorm.clocks import Clock
from txstorm.errors import DataDirectoryError, InputError
from txstorm.results.views import committed_txid, read_directory_history


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
    raise DataDirectoryError(
        f"{directory}: the history does not record what the source delivered for txid {txid}, so no run could continue "
        "after it; choose another txid, txstorm history shows those that are known"
    )


def check_in_history(directory: Path, books: Books, txid: int) -> None:
    """Raise `InputError` if `txid` is before the beginning of the retained history."""
    if txid < (kept := books.kept()):
        raise InputError(
            f"{directory}: txid {txid} is before the kept history, which begins with txid {kept} (history_retention); "
            f"ask for {kept} or later"
        )


def txid_at_clock(data_dir: str | Path, clock: Mapping[str, int]) -> int:
    """Return the first committed transaction whose source clock is `clock`; transactions that were undone do not count.

    Raises:
        InputError: none has it; the message names the nearest clocks before and after it. Or the source has no clocks.
    """
    directory = topology_in(data_dir)
    committed, wanted = committed_txid(directory), Clock(clock)
    found: dict[int, Clock | None] = {}
    for row in read_directory_history(directory).to_pylist():  # of a txid that was committed again the last row counts
        if row["txid"] <= committed:
            found[row["txid"]] = clock_of(json.loads(row["extents"] or "null"))
    known = {txid: one for txid, one in sorted(found.items()) if one is not None}
    if not known:
        raise InputError(f"{directory}: no transaction has a clock: its source has none, or nothing is committed yet")
    for txid, one in known.items():
        if one == wanted:
            return txid
    before = [f"{one} (txid {txid})" for txid, one in known.items() if wanted.reaches(one)][-1:]
    after = [f"{one} (txid {txid})" for txid, one in known.items() if one.reaches(wanted)][:1]
    nearest = " and ".join(before + after) or f"none is comparable; the last one is {list(known.values())[-1]}"
    raise InputError(f"{directory}: no kept transaction has the clock {wanted}; the nearest ones: {nearest}")
