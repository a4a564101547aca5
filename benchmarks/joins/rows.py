"""Rows of the join benchmarks, drawn once from a seed and shared by all sides as two files per side of the join.

A row is a key and a time; its id is its position. Left and right rows have the same times on average, as many of each
per second of event time, so that a fixed number of right rows lies within the bounds of a left row. Of the left rows,
80 % have one of the keys of the right side, the others a key that never matches. Of either side, 1 % come up to 2 s
late; with a lag of 2 s, no row is late.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

SEED = 20190603
START_MS = 1_700_000_000_000
"""Event time of the first row."""
BEFORE_MS, LAG_MS = 60_000, 2_000
"""A right row matches the left rows of its key up to this much later; a row may be out of order by up to the lag."""
MATCHED, LATE = 0.8, 0.01
LEFT, RIGHT = SIDES = ("left", "right")
DTYPES: Mapping[str, type] = {"key": np.int32, "time": np.int64}

Column = npt.NDArray[Any]


@dataclass(frozen=True)
class Form:
    """Size of a join: `window` right rows within the bounds of a left row, with `keys` keys."""

    window: int
    keys: int


FORMS: Mapping[str, Form] = {
    "join-wide": Form(1_000_000, 100_000),
    "join-narrow": Form(100_000, 100_000),
    "join-1e6": Form(1_000_000, 1_000_000),
    "join-1e7": Form(10_000_000, 10_000_000),
}
"""Kind of a job → size of its join."""
_BLOCK = 100_000
"""Rows that are drawn at once."""


def draw(name: str, side: str, share: range) -> dict[str, Column]:
    """Return the rows of one side at the positions `share`: a function of the place alone."""
    blocks = range(share.start // _BLOCK, -(-share.stop // _BLOCK))
    made = [_block(FORMS[name], side, block) for block in blocks]
    first = share.start - blocks.start * _BLOCK
    return {
        column: np.concatenate([one[column] for one in made])[first : first + len(share)].astype(dtype)
        for column, dtype in DTYPES.items()
    }


def _block(form: Form, side: str, block: int) -> dict[str, Column]:
    random = np.random.default_rng((SEED, form.window, SIDES.index(side), block))
    places = np.arange(_BLOCK) + block * _BLOCK
    keys = random.integers(0, form.keys, _BLOCK)
    if side == LEFT:
        keys += np.where(random.random(_BLOCK) < MATCHED, 0, form.keys)
    late = np.where(random.random(_BLOCK) < LATE, random.integers(0, LAG_MS - 10, _BLOCK), 0)
    return {"key": keys, "time": START_MS + LAG_MS + places * BEFORE_MS // form.window - late}


@contextmanager
def stored(name: str, rows: int) -> Iterator[Mapping[str, Any]]:
    """Write `rows` rows, half of them left ones, to files for the block; return what sides need to read them."""
    place = Path(tempfile.mkdtemp(prefix="txstorm-bench-rows-"))
    try:
        for side in SIDES:
            for column, values in draw(name, side, range(rows // 2)).items():
                values.tofile(place / f"{side}-{column}.bin")
        yield {"directory": str(place)}
    finally:
        shutil.rmtree(place)


def read(source: Mapping[str, Any], side: str, share: range) -> tuple[Column, Column]:
    """Return keys and times of the rows of one side at the positions `share`."""
    place = Path(source["directory"])
    key, time = (
        np.fromfile(place / f"{side}-{column}.bin", dtype, len(share), offset=share.start * dtype().itemsize)
        for column, dtype in DTYPES.items()
    )
    return key, time


def part(tuples: int, txid: int) -> range:
    """Return the positions, on either side, of the rows of a transaction of so many rows of both sides."""
    return range((txid - 1) * tuples // 2, txid * tuples // 2)
