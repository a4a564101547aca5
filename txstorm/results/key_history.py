"""History of a key of an interval join: the txids that added, released, matched and expired its rows, and why.

It is derived from the changes of the join's states, as far as they are kept, without its code.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txstorm.errors import InputError
from txstorm.joins.interval.interval_plan import ARRIVALS
from txstorm.joins.interval.join_records import COMPONENT, SHOWN, JoinRecord, unpacked
from txstorm.joins.rules.blocks import ARRIVAL, KEY
from txstorm.joins.rules.matching import LOWEST
from txstorm.joins.rules.positions import Bounds
from txstorm.joins.side_rows import ID, PARTITION, POSITION_BITS, TIME, values_of
from txstorm.keys import are_named, name_of, plain
from txstorm.results.joins import MATCHED, PASSING, ComponentJoin, holding_text
from txstorm.results.read import read_kept_changes, read_state
from txstorm.results.windows import PROGRESS, time_text
from txstorm.storage.rows.schema import TXID

SIDES = ("left", "right")
SIDE = "side"
OUTSIDE = 3
"""Greatest number of rows outside the bounds of a row that are mentioned."""


@dataclass(frozen=True)
class JoinStep:
    """Positions after one transaction, in microseconds; None: undefined.

    Attributes:
        txid: the transaction.
        left, right: the positions of the sides.
        released: left rows before this time were released.
        bound: right rows of the key before this time had expired.
    """

    txid: int
    left: int | None
    right: int | None
    released: int | None
    bound: int

    def to_json(self) -> dict[str, Any]:
        """Return the step as JSON values."""
        bound = None if self.bound == LOWEST else self.bound
        named = {"left": self.left, "right": self.right, "released_before": self.released, "expired_before": bound}
        return {"txid": self.txid, **{name: time_text(time) for name, time in named.items()}}


@dataclass
class JoinRow:
    """A row of a key, and what has become of it.

    Attributes:
        side: ``left`` or ``right``.
        key: tells keys apart that look alike, such as a number and its text.
        id, partition: of its side's fields; None: it has none.
        time: in microseconds.
        arrival: orders rows that came in one transaction.
        ended: the txid that released a left row, or expired a right row; None: none yet.
        matched: the rows of the other side that it was joined with, with the txid.
        flagged: the txid in which a right row was marked as matched; None: it was not.
    """

    side: str
    key: str
    id: str | None
    partition: str | None
    time: int
    arrival: int
    ended: int | None = None
    matched: list[tuple[JoinRow, int]] = field(default_factory=list)
    flagged: int | None = None

    @property
    def added(self) -> int:
        """The txid that added it."""
        return self.arrival >> POSITION_BITS

    @property
    def first_match(self) -> int | None:
        """The txid of its first match; None if it has none that is known."""
        known = [txid for _, txid in self.matched] + ([] if self.flagged is None else [self.flagged])
        return min(known, default=None)


class KeyHistory:
    """History of the rows of one key: which txids added, released, matched and expired them.

    `steps`: txid → the positions after it; `floor`: the txid after which the history is kept.
    """

    def __init__(
        self, join: ComponentJoin, key: Sequence[str], rows: list[JoinRow], steps: Mapping[int, JoinStep], floor: int
    ) -> None:
        self.join, self.key, self.steps, self.floor = join, list(key), steps, floor
        self.rows = sorted(rows, key=lambda one: (one.time, one.side, one.arrival))
        self._bounds = Bounds(join.about["before"], join.about["after"])
        for one in self.rows:
            one.ended = self._ended(one)
        for left in self.of("left"):
            for right in self.of("right") if left.ended is not None else ():
                txid = left.ended or 0
                was_there = right.added <= txid and (right.ended is None or right.ended >= txid)
                if was_there and self._within(left, right):
                    left.matched.append((right, txid))
                    right.matched.append((left, txid))

    @classmethod
    def read(cls, join: ComponentJoin, key: Sequence[str]) -> KeyHistory:
        """Read the history of a key up to the transaction of `join`; `key`: its fields, as text.

        Raises:
            InputError: the key has another number of fields, or no row of it is kept.
        """
        fields = join.about.get("left", {}).get("key", [])
        if len(key) != len(fields):
            msg = f"{join.component}: expected a key of {', '.join(fields) or 'unknown fields'}, got {len(key)} values"
            raise InputError(msg)
        data_dir = join.data_dir
        floor, records = read_kept_changes(data_dir, join.component + PROGRESS, join.txid, ["unit", "record"])
        stored = [_rows_of(data_dir, join, side, key) for side in SIDES]
        rows = pa.concat_tables([*stored, *_passing(data_dir, join, key)]).to_pylist()
        if not rows:
            raise InputError(
                f"{join.component}: no row of key {', '.join(key)!r} has arrived{_since(floor)} up to txid "
                f"{join.txid}; rows with None in their key match nothing, and have no history"
            )
        flags = _flags(data_dir, join)
        found = [JoinRow(one[SIDE], one[KEY], one[ID], one[PARTITION], one[TIME], one[ARRIVAL]) for one in rows]
        for row, one in zip(found, rows, strict=True):
            row.flagged = flags.get(one[ARRIVAL]) if row.side == "right" else None
        return cls(join, key, found, _steps(records), floor)

    def of(self, side: str) -> list[JoinRow]:
        """Return the rows of a side, by time."""
        return [one for one in self.rows if one.side == side]

    def _ended(self, row: JoinRow) -> int | None:
        for txid, step in self.steps.items():
            limit = step.released if row.side == "left" else step.bound
            if txid >= row.added and limit is not None and row.time < limit:
                return txid
        return None

    def _within(self, left: JoinRow, right: JoinRow) -> bool:
        low, high = left.time - self._bounds.before, left.time + self._bounds.after
        return left.key == right.key and low <= right.time <= high

    def to_json(self) -> dict[str, Any]:
        """Return the rows, a sentence for each, and the positions after the transactions that changed them."""
        told = sorted({txid for one in self.rows for txid in (one.added, one.ended, one.first_match) if txid})
        return {
            "component": self.join.component,
            "txid": self.join.txid,
            "key": self.key,
            "kept_after": self.floor,
            "rows": [self._row_json(one) for one in self.rows],
            "positions": [self.steps[txid].to_json() for txid in told if txid in self.steps],
        }

    def _row_json(self, row: JoinRow) -> dict[str, Any]:
        left = row.side == "left"
        return {
            "side": row.side,
            "id": row.id,
            "partition": row.partition,
            "time": time_text(row.time),
            "added": row.added,
            "released" if left else "expired": row.ended,
            "matched": row.first_match,
            "matches": [{"id": other.id, "txid": txid} for other, txid in row.matched],
            "why": self.explain(row),
        }

    def explain(self, row: JoinRow) -> list[str]:
        """Return sentences that say what has become of a row, and why it was not joined with others."""
        others = self.of("right" if row.side == "left" else "left")
        nearest = sorted(others, key=lambda one: abs(one.time - row.time))
        joined = {id(other) for other, _ in row.matched}
        left = row.side == "left"
        missed = [
            self._missed(row, one) if left else self._missed(one, row) for one in nearest if id(one) not in joined
        ]
        inside = [text for text, within in missed if within]
        outside = [text for text, within in missed if not within]
        said = self._left_fate(row) if left else self._right_fate(row)
        if left and row.ended is not None and not row.matched and not others:
            said.append(f"no right row of this key has arrived{_since(self.floor)} up to txid {self.join.txid}")
        # Rows outside the bounds explain only why there is no match at all.
        return [*said, *inside, *([] if row.matched or not left or row.ended is None else outside[:OUTSIDE])]

    def _left_fate(self, row: JoinRow) -> list[str]:
        low, high = (time_text(one) for one in (row.time - self._bounds.before, row.time + self._bounds.after))
        if row.ended is None:
            position = time_text(self.join.record.right.watermark) or "undefined"
            held = self.join.side("right")["held_back_by"]
            said = [f"pending until the right position is after {high}; it is {position}"]
            return said if held is None else [*said, f"the right side is {holding_text(held)}"]
        if row.matched:
            return [f"joined with right row {other.id} in txid {txid}" for other, txid in row.matched]
        return [f"released in txid {row.ended} without a match; its bounds are {low} to {high}"]

    def _right_fate(self, row: JoinRow) -> list[str]:
        said = [f"joined with left row {other.id} in txid {txid}" for other, txid in row.matched]
        if not said and row.flagged is not None:
            said = [f"matched in txid {row.flagged}, by a left row that is not kept"]
        if row.ended is None:
            return said or ["in the window, not matched so far"]
        at = "in which it came" if row.ended == row.added else "once the left side had passed it"
        return [*said, f"expired in txid {row.ended}, {at}{'' if said else ', without a match that is known'}"]

    def _missed(self, left: JoinRow, right: JoinRow) -> tuple[str, bool]:
        """Return why two rows were not joined, and whether their times would have allowed it."""
        pair = f"right row {right.id} at {time_text(right.time)}"
        if not self._within(left, right):
            return f"{pair} is outside the bounds of left row {left.id}", False
        if left.ended is None:
            return f"{pair} is joined with left row {left.id} when that is released", True
        if right.added > left.ended:
            return (
                f"{pair} arrived in txid {right.added}, after left row {left.id} was released in txid {left.ended} "
                "(straggler)",
                True,
            )
        return f"{pair} expired in txid {right.ended}, before left row {left.id} came in txid {left.added} (late)", True


def _since(floor: int) -> str:
    return f" after txid {floor}, where the kept history begins," if floor else ""


def _rows_of(data_dir: Path, join: ComponentJoin, side: str, key: Sequence[str]) -> pa.Table:
    """Return the rows of a key that a side has kept: those at the beginning of the kept history, and those since."""
    name = f"{join.component}-{side}"
    floor, changes = read_kept_changes(data_dir, name, join.txid, SHOWN)
    parts = [changes.select(SHOWN)]
    if floor:
        parts.insert(0, read_state(data_dir, name, floor, join.txid).select(SHOWN))
    rows = pa.concat_tables(parts)
    rows = rows.filter(rows[ARRIVAL].is_valid())  # without tombstones
    return _of_key(rows, key, side, join)


def _passing(data_dir: Path, join: ComponentJoin, key: Sequence[str]) -> Iterator[pa.Table]:
    """Yield the rows of a key that came and went in one transaction."""
    _, changes = read_kept_changes(data_dir, join.component + PASSING, join.txid, [SIDE, "rows"])
    for side, rows in zip(changes[SIDE], changes["rows"], strict=True):
        if rows.is_valid:
            yield _of_key(unpacked(rows.as_buffer()), key, side.as_py(), join)


def _of_key(rows: pa.Table, key: Sequence[str], side: str, join: ComponentJoin) -> pa.Table:
    """Return those of the stored rows of a side that have a key, given as texts of its fields."""
    stored = join.about[side]["plain"]  # columns that hold values, and not their texts
    encoded = rows[KEY].combine_chunks().dictionary_encode()
    keys = _decoded(encoded.dictionary, KEY in stored)
    parts = [value if isinstance(value, list | tuple) else [value] for value in keys]
    chosen = [code for code, own in enumerate(parts) if own != [None] and are_named(own, key)]
    kept = rows.filter(pc.is_in(encoded.indices, pa.array(chosen, encoded.indices.type)))
    columns = {of: _decoded(kept[of].combine_chunks(), of in stored) for of in (KEY, ID, PARTITION)}
    texts = {of: [None if one is None else name_of(one) for one in columns[of]] for of in (ID, PARTITION)}
    # The number 7 and the text 7 are different keys.
    texts[KEY] = [repr(plain(one)) if isinstance(one, str | list) else name_of(one) for one in columns[KEY]]
    shown = {of: pa.array(column, pa.string()) for of, column in texts.items()}
    return pa.table({SIDE: pa.repeat(side, kept.num_rows), **shown, **{of: kept[of] for of in (TIME, ARRIVAL)}})


def _flags(data_dir: Path, join: ComponentJoin) -> dict[int, int]:
    """Return the txid that marked a right row as matched, by arrival."""
    name = join.component + MATCHED
    floor, rows = read_kept_changes(data_dir, name, join.txid, [ARRIVALS])
    flags = dict[int, int]()
    for arrivals, txid in zip(rows[ARRIVALS].to_pylist(), rows[TXID.name].to_pylist(), strict=True):
        flags |= dict.fromkeys(np.frombuffer(arrivals or b"", np.int64).tolist(), txid)
    before = read_state(data_dir, name, floor, join.txid)[ARRIVALS].to_pylist() if floor else []
    return flags | dict.fromkeys(np.frombuffer(b"".join(before), np.int64).tolist(), floor)


def _steps(records: pa.Table) -> dict[int, JoinStep]:
    """Return txid → positions after it."""
    steps = {}
    for row in records.filter(pc.equal(records["unit"], COMPONENT)).to_pylist():
        record, txid = JoinRecord.read(row["record"]), row[TXID.name]
        steps[txid] = JoinStep(txid, record.left.watermark, record.right.watermark, record.released, record.bound)
    return dict(sorted(steps.items()))


def _decoded(column: pa.Array, plain: bool) -> list[Any]:
    """Return the values of a column, converted back if it holds their texts."""
    values = column if plain else values_of(column)
    return values if isinstance(values, list) else values.to_pylist()
