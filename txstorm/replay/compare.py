"""Comparison of a replayed txid with the committed one: its digest, and the rows of every table."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from txstorm.api.attempt import TransactionAttempt
from txstorm.engine.port import ErrorRow
from txstorm.results.read import json_value
from txstorm.storage.rows.schema import EVICTED, EVICTED_ALL, KEY_GROUP, OP, PREV, REMOVED, TXID
from txstorm.typed import restored

KEPT = 1000
"""Maximum number of differing rows of a table that a verdict contains; all are counted."""

_OPERATIONS = {REMOVED: "removed", EVICTED: "evicted", EVICTED_ALL: "evicted"}
_HIDDEN = {TXID.name, KEY_GROUP.name}
Row = Mapping[str, Any]


@dataclass(frozen=True)
class RowDifference:
    """One row that differs between the committed and the replayed txid.

    Attributes:
        key: the key in a state; None for a row of a sink.
        committed: the committed row, as JSON values; None if there is none.
        replayed: the replayed row, as JSON values; None if there is none.
    """

    key: Row | None
    committed: Row | None
    replayed: Row | None

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return {"key": self.key, "committed": self.committed, "replayed": self.replayed}

    def changed(self) -> tuple[Row, Row]:
        """Return the differing values, committed and replayed, with txstorm's own columns only if no others differ."""
        committed, replayed = dict(self.committed or {}), dict(self.replayed or {})
        if committed and replayed:
            same = {name for name, value in committed.items() if name in replayed and replayed[name] == value}
            committed = {name: value for name, value in committed.items() if name not in same}
            replayed = {name: value for name, value in replayed.items() if name not in same}
        plain = _without_own_columns(committed), _without_own_columns(replayed)
        return plain if plain[0] != plain[1] else (committed, replayed)


def _without_own_columns(row: Row) -> Row:
    """Return `row` without txstorm's own columns; ``removed`` or ``evicted`` if it is a removal or a tombstone."""
    if row.get(OP.name) in _OPERATIONS:
        return {OP.name: _OPERATIONS[row[OP.name]]}
    return {name: value for name, value in row.items() if name not in (OP.name, PREV)}


@dataclass(frozen=True)
class TableVerdict:
    """Comparison of one table in one txid.

    Attributes:
        table: ``changes/<state>`` or ``sinks/<sink>``.
        committed, replayed: numbers of committed and of replayed rows.
        different: number of rows that differ.
        differences: the first `KEPT` differing rows.
        reordered: whether a sink has the same rows in a different order.
    """

    table: str
    committed: int
    replayed: int
    different: int = 0
    differences: tuple[RowDifference, ...] = ()
    reordered: bool = False

    @property
    def equal(self) -> bool:
        """Whether the rows are the same, those of a sink in the same order unless they come from a DataFrame."""
        return not self.different and not self.reordered

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return {
            "committed": self.committed,
            "replayed": self.replayed,
            "different": self.different,
            "reordered": self.reordered,
            "differences": [one.to_json() for one in self.differences],
        }


@dataclass(frozen=True)
class ReplayVerdict:
    """The outcome of one txid's replay.

    Attributes:
        attempt: the committed attempt, whose id the replay used.
        committed_digest: the recorded digest of the input.
        digest: the digest of the replayed input; None if it was not read completely.
        tables: one verdict per table.
        failure: the error, if user code raised one; tables are then not compared.
        tuples: number of tuples emitted by spout and bolts.
        not_compared: why the transaction need not give the same rows again, and so was not compared; None: it was.
        notes: possible explanations of a difference.
    """

    attempt: TransactionAttempt
    committed_digest: str
    digest: str | None = None
    tables: tuple[TableVerdict, ...] = ()
    failure: ErrorRow | None = None
    tuples: int = 0
    not_compared: str | None = None
    notes: tuple[str, ...] = field(default=())

    @property
    def txid(self) -> int:
        """The replayed transaction."""
        return self.attempt.txid

    @property
    def equal(self) -> bool:
        """Whether the result equals the committed one, as far as it was compared: the same input and the same rows."""
        return self.failure is None and self.digest == self.committed_digest and all(one.equal for one in self.tables)

    def to_json(self) -> dict[str, Any]:
        """Return the verdict as ``--json`` prints it."""
        failure = self.failure
        return {
            "txid": self.txid,
            "attempt": self.attempt.attempt_id,
            "equal": self.equal,
            "digest": {"committed": self.committed_digest, "replayed": self.digest},
            "tuples": self.tuples,
            "tables": {one.table: one.to_json() for one in self.tables},
            "failure": None if failure is None else {"type": failure.type, "message": str(failure)},
            "notes": list(self.notes),
            **({"not_compared": self.not_compared} if self.not_compared else {}),
        }


@dataclass(frozen=True)
class Rows:
    """Committed and replayed rows of one table and txid; None if there is no such table, or nothing was written.

    Attributes:
        keys: the key columns; None for a sink.
    """

    committed: pa.Table | None
    replayed: pa.Table | None
    keys: Sequence[str] | None


def compared(table: str, rows: Rows, *, ordered: bool) -> TableVerdict:
    """Compare the committed with the replayed rows of `table`; `ordered`: whether the order of a sink's rows counts."""
    before, after = _size(rows.committed), _size(rows.replayed)
    if _same(rows.committed, rows.replayed):
        return TableVerdict(table, before, after)
    committed, replayed = _plain(rows.committed), _plain(rows.replayed)
    if rows.keys is not None:
        found = list(_by_key(committed, replayed, rows.keys))
        return TableVerdict(table, before, after, len(found), tuple(found[:KEPT]))
    found = [*_missing(committed, replayed, committed=True), *_missing(replayed, committed, committed=False)]
    reordered = ordered and not found and committed != replayed
    return TableVerdict(table, before, after, len(found), tuple(found[:KEPT]), reordered)


def _size(table: pa.Table | None) -> int:
    return 0 if table is None else int(table.num_rows)


def _same(committed: pa.Table | None, replayed: pa.Table | None) -> bool:
    """Return whether both are equal byte by byte: a fast check before a comparison of `_plain` values."""
    if committed is None or replayed is None or committed.num_rows != replayed.num_rows:
        return not (committed or replayed)
    names = [name for name in committed.column_names if name not in _HIDDEN]
    if not set(names) <= set(replayed.column_names):
        return False
    try:
        return bool(committed.select(names).equals(restored(replayed.select(names), committed.select(names).schema)))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
        return False


def _plain(table: pa.Table | None) -> list[dict[str, Any]]:
    """Convert the rows to JSON values, in which NaN equals NaN."""
    if table is None:
        return []
    names = [name for name in table.column_names if name not in _HIDDEN]
    return [json_value(row) for row in table.select(names).to_pylist()]


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _by_key(committed: list[Any], replayed: list[Any], keys: Sequence[str]) -> Iterable[RowDifference]:
    sides = [{_text([row[key] for key in keys]): row for row in side} for side in (committed, replayed)]
    for key in sorted(set(sides[0]) | set(sides[1])):
        before, after = sides[0].get(key), sides[1].get(key)
        if _text(before) != _text(after):
            row = before or after or {}
            shown = {name: row[name] for name in keys}
            yield RowDifference(shown, _without(before, keys), _without(after, keys))


def _without(row: dict[str, Any] | None, keys: Sequence[str]) -> Row | None:
    return None if row is None else {name: value for name, value in row.items() if name not in keys}


def _missing(rows: list[Any], others: list[Any], *, committed: bool) -> Iterable[RowDifference]:
    """Yield rows of a sink that occur less often on the other side."""
    left = Counter(map(_text, others))
    for row in rows:
        text = _text(row)
        left[text] -= 1
        if left[text] < 0:
            yield RowDifference(None, row, None) if committed else RowDifference(None, None, row)
