"""Independent verifier of the data directory of an ended run; shares no code with txstorm.

It reads Delta logs as plain JSON and rows with deltalake; the caller passes the records of the source. From txstorm
itself it uses only the history table: the extents that each transaction has read. A caller creates a `Verifier`, runs
the checks that fit its topology, and reads `problems`, or has them raised by `assert_clean`:

- always: txids are consecutive, each occurs once, and their stamps never decrease;
- `ranges`: the offset ranges that transactions read of a topic cover its partitions without gap or overlap;
- `check_logs`: files, epochs and ranges of commits, against each other and the history;
- `check_rows`: a sink has each expected row once, in its transaction;
- `check_counts`: a state that counts rows by key, change by change; `check_values`: another column of a state.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

BITS = 40
"""Of a key, below the txid, in what identifies a change."""

Numbers = np.ndarray[Any, np.dtype[np.int64]]
Place = tuple[str, int]
"""A partition of one life of a topic: the topic's id, and the partition's number."""
Row = dict[str, Any]


@dataclass(frozen=True)
class Rows:
    """Rows as columns of integers; a string is replaced with its index in `texts`."""

    columns: Mapping[str, Numbers]
    texts: Sequence[str] = ()

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, name: str) -> Numbers:
        return self.columns[name]

    @classmethod
    def of(cls, columns: Mapping[str, Sequence[Any]]) -> Rows:
        """Build rows of integer columns and at most one string column, the vocabulary."""
        texts: dict[str, int] = {}
        found = {
            name: np.array([texts.setdefault(v, len(texts)) if isinstance(v, str) else v for v in values], np.int64)
            for name, values in columns.items()
        }
        return cls(found, list(texts))

    def codes(self, column: pa.ChunkedArray) -> Numbers:
        """Encode a column of a table as these rows are encoded; unknown strings get the highest codes."""
        if pa.types.is_integer(column.type):
            return numbers(column)
        found = pc.index_in(column.cast(pa.string()), pa.array(self.texts, pa.string()))
        return numbers(pc.fill_null(found, len(self.texts)))


@dataclass
class Read:
    """Offset ranges of one partition in the history, as (txid, from, to): those read and those lost."""

    ranges: list[tuple[int, int, int]] = field(default_factory=list)
    lost: list[tuple[int, int, int | None]] = field(default_factory=list)
    next: int = -1


class Verifier:
    """Checks of one data directory, which count lost and surplus rows over all tables, and collect other problems."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.lost = self.twice = 0
        self.problems: list[str] = []
        self.history: list[Row] = sorted(self.table("history").to_pylist(), key=lambda row: row["txid"])
        self.txids = len(self.history)
        self.expect([row["txid"] for row in self.history] == list(range(1, self.txids + 1)), "txids have gaps")
        stamps = [row["stamp"] for row in self.history]
        self.expect(stamps == sorted(stamps), "the stamps of transactions go back")

    @property
    def clean(self) -> bool:
        """Whether no row is lost or duplicated and no other problem was found."""
        return not (self.lost or self.twice or self.problems)

    def assert_clean(self) -> None:
        found = "\n".join(self.problems)
        assert self.clean, f"{self.data_dir}: {self.lost} lost, {self.twice} twice\n{found}"

    def expect(self, holds: bool, otherwise: str) -> None:
        """Add the problem `otherwise` unless `holds`."""
        if not holds:
            self.problems.append(otherwise)

    @contextmanager
    def noting(self, what: str) -> Iterator[None]:
        """Record an AssertionError raised within the context as a problem."""
        try:
            yield
        except AssertionError as error:
            self.problems.append(f"{what}: {error}")

    def table(self, name: str) -> pa.Table:
        return pa.table(DeltaTable(self.data_dir / name).to_pyarrow_table())

    def ranges(self, topic: str) -> dict[Place, Read]:
        """Return the ranges of a topic that transactions read or report as lost; empty if they have gaps or overlap."""
        with self.noting("the ranges do not tile"):
            return _read_ranges(self.history, topic)
        return {}

    def check_logs(self, changed: Sequence[str], others: Sequence[str], *, swept: bool = True) -> frozenset[int]:
        """Check the logs from their first entry; return the epochs of the coordinators that led the tables.

        Every transaction changes the tables `changed`; `swept`: whether leftover files count as a problem.
        """
        epochs: set[int] = set()
        for name in (*changed, *others):
            with self.noting(name):
                entries = _log(self.data_dir / name)
                epochs.update(_epochs(entries))
                if swept:
                    _check_files(self.data_dir / name, entries)
                if name in changed:
                    _check_commits(entries, self.history)
        left = [path for kind in ("spill", "intents") for path in (self.data_dir / kind).iterdir()]
        self.expect(not swept or not left, f"files are left over: {left}")
        return frozenset(epochs)

    def check_rows(self, name: str, expected: Rows, key: Sequence[str] = ("partition", "offset")) -> None:
        """Check that the table has every expected row exactly once; the columns `key` identify a row."""
        table = self.table(name)
        found = {column: expected.codes(table[column]) for column in expected.columns}
        ids, wanted = _packed([found[column] for column in key], [expected[column] for column in key])
        order = np.argsort(wanted, kind="stable")
        wanted = wanted[order]
        self.expect(len(np.unique(wanted)) == len(wanted), f"{name}: expected rows twice")
        unique, first, times = np.unique(ids, return_index=True, return_counts=True)
        known = np.isin(unique, wanted)
        self.lost += int((~np.isin(wanted, unique)).sum())
        self.twice += int((times - 1).sum()) + int((~known).sum())
        at = order[np.searchsorted(wanted, unique[known])]
        for column in expected.columns:
            differ = int((found[column][first[known]] != expected[column][at]).sum())
            self.expect(not differ, f"{name}: {differ} rows have another {column} than they should")
        self._check_txids(name, numbers(table["_txid"]))

    def _check_txids(self, name: str, txids: Numbers) -> None:
        ahead = sorted({int(txid) for txid in txids if txid > self.txids})
        self.expect(not ahead, f"{name} is ahead of the history, which ends with txid {self.txids}: it has {ahead}")

    def check_counts(self, name: str, key: str, rows: Rows) -> None:
        """Check a state whose `n` counts rows by `key`: each transaction must add its number of rows to each key."""
        keys, changes = rows[key], self.table(f"changes/{name}")
        txids, codes = numbers(changes["_txid"]), rows.codes(changes[key])
        self._check_txids(f"changes/{name}", txids)
        before = numbers(pc.struct_field(changes["_prev"].combine_chunks(), "n"))
        wanted, counts = np.unique((rows["_txid"] << BITS) | keys, return_counts=True)
        added, first, times = np.unique((txids << BITS) | codes, return_index=True, return_counts=True)
        self.expect(bool((times == 1).all()), f"changes/{name}: keys that change more than once in a transaction")
        other = np.setxor1d(wanted, added) >> BITS
        self.expect(not len(other), f"changes/{name}: other keys than were read, in txids {_some(other)}")
        both = np.isin(wanted, added)
        amounts = (numbers(changes["n"]) - before)[first[np.isin(added, wanted)]]
        wrong = wanted[both][amounts != counts[both]] >> BITS
        self.expect(not len(wrong), f"changes/{name}: other counts than were read, in txids {_some(wrong)}")
        self._check_chain(name, changes, codes, txids)
        self._check_now(name, key, codes, txids, rows)

    def _check_chain(self, name: str, changes: pa.Table, codes: Numbers, txids: Numbers) -> None:
        """Check that the previous value in every change is the one that the preceding change of its key produced."""
        order = np.lexsort((txids, codes))
        follows = codes[order][1:] == codes[order][:-1]
        previous = changes["_prev"].combine_chunks()
        for column in previous.type:
            now, before = numbers(changes[column.name])[order], numbers(pc.struct_field(previous, column.name))[order]
            broken = int((follows & (before[1:] != now[:-1])).sum())
            self.expect(not broken, f"changes/{name}: {broken} values of {column.name} do not follow from those before")
        is_first = np.concatenate([[True], ~follows])[: len(order)]
        begun = int((~np.asarray(pc.is_null(previous), bool)[order] & is_first).sum())
        self.expect(not begun, f"changes/{name}: {begun} keys had a value before their first change")

    def _check_now(self, name: str, key: str, codes: Numbers, txids: Numbers, rows: Rows) -> None:
        """Check that the state's table has every key's count and the txid that changed it last."""
        state = self.table(f"state/{name}")
        self._check_txids(f"state/{name}", numbers(state["_txid"]))
        found = rows.codes(state[key]).tolist()
        held = dict(zip(found, numbers(state["n"]).tolist(), strict=True))
        self.expect(len(held) == len(state), f"state/{name}: keys that are there more than once")
        wanted = by_key(rows[key], np.ones_like(rows[key]), np.add)
        for code in held.keys() | wanted.keys():
            surplus = held.get(code, 0) - wanted.get(code, 0)
            self.lost += max(0, -surplus)
            self.twice += max(0, surplus)
        now = dict(zip(found, numbers(state["_txid"]).tolist(), strict=True))
        changed = by_key(codes, txids, np.maximum)
        self.expect(now == changed, f"state/{name}: rows of other txids than those that changed them last")

    def check_values(self, name: str, column: str, key: str, rows: Rows, wanted: Mapping[int, int]) -> None:
        """Check that `column` of a state has the values `wanted`, keyed by the codes of `key` in `rows`."""
        state = self.table(f"state/{name}")
        held = dict(zip(rows.codes(state[key]).tolist(), numbers(state[column]).tolist(), strict=True))
        text = pa.types.is_string(state.schema.field(key).type) or pa.types.is_large_string(
            state.schema.field(key).type
        )
        wrong = [rows.texts[code] if text else code for code in sorted(wanted) if held.get(code) != wanted[code]]
        self.expect(not wrong, f"state/{name}: {column} is another one than the records make it, of {wrong[:5]}")


def numbers(column: pa.ChunkedArray | pa.Array) -> Numbers:
    return np.asarray(pc.fill_null(column.cast(pa.int64()), 0), np.int64)


def by_key(keys: Numbers, values: Numbers, how: np.ufunc) -> dict[int, int]:
    order = np.argsort(keys, kind="stable")
    found, first = np.unique(keys[order], return_index=True)
    if not len(found):
        return {}
    return dict(zip(found.tolist(), how.reduceat(values[order], first).tolist(), strict=True))


def _packed(*tables: Sequence[Numbers]) -> list[Numbers]:
    """Pack each row of each table into a single number, equal only for equal rows."""
    packed = [np.zeros_like(columns[0]) for columns in tables]
    used = 0
    for column in range(len(tables[0])):
        bits = max((int(columns[column].max(initial=0)) for columns in tables), default=0).bit_length()
        used += bits
        assert used < 63, "too many bits for one number"
        packed = [(one << bits) | columns[column] for one, columns in zip(packed, tables, strict=True)]
    return packed


def _some(txids: Numbers) -> list[int]:
    return sorted({int(txid) for txid in txids})[:10]


def _read_ranges(history: Iterable[Row], topic: str) -> dict[Place, Read]:
    """Return the ranges read of each partition; fail unless each begins at the end of the previous one."""
    read: dict[Place, Read] = defaultdict(Read)
    before = ""
    for row in history:
        txid, meta = row["txid"], json.loads(row["extents"])["meta"]
        entry = meta["topics"].get(topic)
        now = entry["id"] if entry else before
        for lost in meta.get("lost", ()):
            # A loss without end is that of the topic that had the name before.
            part = read[before if lost["to"] is None else now, lost["partition"]]
            assert part.next in (-1, lost["from"]), f"txid {txid}: lost {lost}, but stood at {part.next}"
            part.lost.append((txid, lost["from"], lost["to"]))
            part.next = lost["from"] if lost["to"] is None else lost["to"]
        for number, stop in (entry["next"] if entry else {}).items():
            part, start = read[now, int(number)], entry["from"].get(number, stop)
            assert part.next in (-1, start), f"txid {txid}, {number}: read from {start}, expected {part.next}"
            if start < stop:
                part.ranges.append((txid, start, stop))
            part.next = stop
        before = now
    return dict(read)


def _log(table: Path) -> list[list[Row]]:
    files = sorted((table / "_delta_log").glob("[0-9]*.json"))
    assert [int(file.stem) for file in files] == list(range(len(files))), "versions of the log are missing"
    return [[json.loads(line) for line in file.read_text().splitlines()] for file in files]


def _actions(entries: Iterable[list[Row]], kind: str) -> Iterator[Row]:
    return (action[kind] for entry in entries for action in entry if kind in action)


def _epochs(entries: list[list[Row]]) -> set[int]:
    epochs = [action["version"] for action in _actions(entries, "txn") if action["appId"].endswith("/epoch")]
    assert epochs == sorted(epochs), f"an older coordinator wrote after a newer one: {epochs}"
    return set(epochs) - {0}  # made with the table


def _check_files(table: Path, entries: list[list[Row]]) -> None:
    """Assert that no data file is missing or truncated, and that no leftover file is unreferenced by the log."""
    named = {action["path"]: action["size"] for action in _actions(entries, "add")}
    found = {str(file.relative_to(table)): file.stat().st_size for file in table.glob("**/*.parquet")}
    found = {path: size for path, size in found.items() if not path.startswith("_delta_log")}
    assert found == named, f"the files and their sizes are {found}, the log says {named}"


def _check_commits(entries: list[list[Row]], history: list[Row]) -> None:
    """Assert that the commits' ranges cover all txids without gap or overlap, and agree with the history about each."""
    infos = [info["txstorm"] for info in _actions(entries, "commitInfo")]
    last = 0
    said: list[tuple[Any, ...]] = []
    for info in [info for info in infos if info["kind"] == "commit"]:
        assert info["first"] == last + 1 <= info["last"], f"txids {info['first']} to {info['last']} after {last}"
        last = info["last"]
        txids = [record["txid"] for record in info["txids"]]
        assert txids == list(range(info["first"], last + 1)), f"txids {txids} in a commit of {info['first']} to {last}"
        said += [
            (r["txid"], r["attempt"], r["digest"], r["stamp"], r["extents"], info["first"], last) for r in info["txids"]
        ]
    expected = [
        (r["txid"], r["attempt"], r["digest"], _microseconds(r), json.loads(r["extents"]), r["first"], r["last"])
        for r in history
    ]
    assert said == expected, f"the commits say {said}, the history says {expected}"


def _microseconds(row: Row) -> int:
    return (row["stamp"] - datetime.fromtimestamp(0, UTC)) // timedelta(microseconds=1)
