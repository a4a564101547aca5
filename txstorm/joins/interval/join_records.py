"""Records of an interval join in its state `<component>-progress`, as JSON: one of the component, one per task.

Only task 0 writes the component's record; every task reads it as it was after the previous transaction.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from txstorm.joins.rules.blocks import ARRIVAL, KEY
from txstorm.joins.rules.matching import LOWEST
from txstorm.joins.side_rows import ID, PARTITION, TIME
from txstorm.windows.rules.event_time import Newest, Progress

COMPONENT = "component"
"""Key of the component's record; those of tasks are their numbers in brackets."""
SHOWN = [KEY, TIME, ID, PARTITION, ARRIVAL]
"""Columns of a stored row that the history of its key shows."""


@dataclass(frozen=True)
class JoinRecord:
    """Record of an interval join after a transaction.

    Attributes:
        left, right: the progress of the sides; the watermark is the position.
        tasks: number of tasks in the transaction; None before the first.
        released: left rows of earlier times have been released; None if none have been.
        bound: right rows of earlier times have expired; `LOWEST` if none have.
        oldest_pending: the time of the oldest pending left row; None if there is none.
        newest_pending: the time of the newest left row that was ever pending.
        about: what else helps to understand the record; see `IntervalPlan.about`.
        ahead: input → number of tuples so far that were too far ahead of the stamp.
    """

    left: Progress = field(default_factory=Progress)
    right: Progress = field(default_factory=Progress)
    tasks: int | None = None
    released: int | None = None
    bound: int = LOWEST
    oldest_pending: int | None = None
    newest_pending: int = LOWEST
    about: Any = None
    ahead: Mapping[str, int] = field(default_factory=dict)

    def text(self) -> str:
        """Return the record as JSON."""
        sides = {"left": _progress_json(self.left), "right": _progress_json(self.right)}
        return _json({**vars(self), **sides})

    @classmethod
    def read(cls, text: str | None) -> JoinRecord:
        """Return the record with this text; a new one if there is none."""
        if text is None:
            return cls()
        stored = json.loads(text)
        return cls(**{**stored, **{name: _progress_of(stored[name]) for name in ("left", "right")}})


@dataclass(frozen=True)
class TaskRecord:
    """Record of a task of an interval join after a transaction; numbers since the first one.

    Attributes:
        pending: number of pending left rows.
        buffered: number of right rows that have not expired.
        stragglers: number of right rows that came after left rows that they bound may have been released.
        late: number of left rows whose bounds began below the bound when they came.
        released: number of left rows released.
        joined: number of pairs.
        unmatched_left, unmatched_right: number of rows that have not matched, for good.
        passing: number of rows that came and went in this transaction.
    """

    pending: int = 0
    buffered: int = 0
    stragglers: int = 0
    late: int = 0
    released: int = 0
    joined: int = 0
    unmatched_left: int = 0
    unmatched_right: int = 0
    passing: int = 0

    def text(self) -> str:
        """Return the record as JSON."""
        return _json(asdict(self))

    @classmethod
    def read(cls, text: str | None) -> TaskRecord:
        """Return the record with this text; a new one if there is none."""
        return cls() if text is None else cls(**json.loads(text))


def packed(rows: pa.Table) -> bytes:
    """Encode what the history of a key needs of stored rows: a quarter of the bytes of a state's rows, uncompressed.

    The file that they are stored in is compressed as a whole.
    """
    shown = rows.select(SHOWN)
    numbers = {one.name: "DELTA_BINARY_PACKED" for one in shown.schema if pa.types.is_integer(one.type)}
    sink = pa.BufferOutputStream()
    options = {"compression": "none", "use_dictionary": False, "write_statistics": False, "column_encoding": numbers}
    pq.write_table(shown, sink, **options)
    return bytes(sink.getvalue())


def unpacked(packed: bytes) -> pa.Table:
    """Decode rows encoded by `packed`."""
    return pq.read_table(pa.BufferReader(packed))


def unit_of_task(task: int) -> str:
    """Return the key of the record of a task."""
    return f"[{task}]"


def _progress_json(progress: Progress) -> dict[str, Any]:
    return {
        "position": progress.watermark,
        "advanced": progress.advanced,
        "first_stamp": progress.first_stamp,
        "partitions": sorted([part, one.time, one.stamp] for (_, part), one in progress.newest.items()),
    }


def _progress_of(stored: dict[str, Any]) -> Progress:
    newest = {(0, part): Newest(time, stamp) for part, time, stamp in stored["partitions"]}
    return Progress(stored["position"], stored["advanced"], stored["first_stamp"], newest)


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
