"""Says whether the tables of the crash grid's topology are right. Shares no code with txstorm.

It reads Delta logs as the JSON they are, and rows with deltalake. What every table's log says of a transaction is held
against what the other logs and the history say of it; the rows kept are held against the extents it has read; the counts
and the sum, change by change, against the rows kept.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

CHANGED = ("changes/counts", "changes/totals", "sinks/rows")
"""The tables that every transaction changes."""
OTHERS = ("state/counts", "state/totals")

Row = dict[str, Any]


@dataclass(frozen=True)
class Found:
    """What is in the tables.

    Attributes:
        rows: txid → the rows that it kept, as (partition, offset, generation, word), sorted.
        epochs: of the coordinators that led the tables.
    """

    rows: Mapping[int, list[tuple[int, int, int, str]]]
    epochs: frozenset[int]

    def batches(self) -> dict[int, dict[int, tuple[int, int, int]]]:
        """Txid → partition → (first offset, number of rows, generation)."""
        return {
            txid: {
                partition: _batch([(offset, made) for at, offset, made, _ in rows if at == partition])
                for partition in sorted({at for at, *_ in rows})
            }
            for txid, rows in self.rows.items()
        }


def verify(data_dir: Path, *, swept: bool = True) -> Found:
    """Check everything that does not depend on what the source has given; with `swept` that no file is left over."""
    history = sorted(_rows(data_dir / "history"), key=lambda row: row["txid"])
    txids = [row["txid"] for row in history]
    assert txids == list(range(1, len(txids) + 1)), "txids without gaps, each once"
    stamps = [row["stamp"] for row in history]
    assert stamps == sorted(stamps), "time never goes back"
    epochs: set[int] = set()
    for name in CHANGED + OTHERS:
        entries = _log(data_dir / name)
        epochs.update(_epochs(name, entries))
        if swept:
            _check_files(data_dir / name, entries)
        if name in CHANGED:
            _check_ranges(name, entries, history)
    assert not swept or not [*(data_dir / "spill").iterdir(), *(data_dir / "intents").iterdir()], "nothing left over"
    rows: dict[int, list[tuple[int, int, int, str]]] = defaultdict(list)
    for row in _rows(data_dir / "sinks/rows"):
        rows[row["_txid"]].append((row["partition"], row["offset"], row["generation"], row["word"]))
    assert set(rows) == set(txids), "each transaction has read something"
    found = {txid: sorted(rows[txid]) for txid in txids}
    _check_offsets(found)
    _check_counts(data_dir, found)
    _check_totals(data_dir, found)
    return Found(found, frozenset(epochs))


def check_extents(data_dir: Path, batches: Mapping[int, Mapping[int, tuple[int, int, int]]]) -> None:
    """What the history says the memory spout has read is `batches`."""
    for row in _rows(data_dir / "history"):
        read = {int(p): (start, count) for p, (start, count) in json.loads(row["extents"])["meta"].items() if count}
        assert read == {p: (start, count) for p, (start, count, _) in batches[row["txid"]].items()}, row


def _batch(rows: list[tuple[int, int]]) -> tuple[int, int, int]:
    """Of one transaction and partition: (first offset, number of rows, generation)."""
    generations = {generation for _, generation in rows}
    assert len(generations) == 1, f"one transaction holds rows of two attempts: {rows}"
    return rows[0][0], len(rows), generations.pop()


# --- logs -------------------------------------------------------------------------------------------------------------


def _rows(table: Path) -> list[Row]:
    return list(DeltaTable(table).to_pyarrow_table().to_pylist())


def _log(table: Path) -> list[list[Row]]:
    """The actions of each version."""
    files = sorted((table / "_delta_log").glob("[0-9]*.json"))
    assert [int(file.stem) for file in files] == list(range(len(files))), table
    return [[json.loads(line) for line in file.read_text().splitlines()] for file in files]


def _actions(entries: Iterable[list[Row]], kind: str) -> Iterator[Row]:
    return (action[kind] for entry in entries for action in entry if kind in action)


def _epochs(name: str, entries: list[list[Row]]) -> set[int]:
    epochs = [one["version"] for one in _actions(entries, "txn") if one["appId"].endswith("/epoch")]
    assert epochs == sorted(epochs), f"{name}: an older coordinator wrote after a newer one: {epochs}"
    return set(epochs) - {0}  # made with the table


def _check_files(table: Path, entries: list[list[Row]]) -> None:
    """No file is missing or cut, none is left that the log does not name."""
    named = {one["path"]: one["size"] for one in _actions(entries, "add")}
    there = {str(file.relative_to(table)): file.stat().st_size for file in table.glob("**/*.parquet")}
    there = {path: size for path, size in there.items() if not path.startswith("_delta_log")}
    assert there == named, table


def _check_ranges(name: str, entries: list[list[Row]], history: list[Row]) -> None:
    """The ranges of its commits tile the txids; what they say of each is what the history says."""
    commits = [info["txstorm"] for info in _actions(entries, "commitInfo") if info["txstorm"]["kind"] == "commit"]
    last = 0
    said: list[tuple[Any, ...]] = []
    for one in commits:
        assert one["first"] == last + 1 <= one["last"], f"{name}: {one['first']}-{one['last']} after {last}"
        last = one["last"]
        assert [record["txid"] for record in one["txids"]] == list(range(one["first"], last + 1)), name
        said += [
            (r["txid"], r["attempt"], r["digest"], r["stamp"], r["extents"], one["first"], last) for r in one["txids"]
        ]
    expected = [
        (r["txid"], r["attempt"], r["digest"], _microseconds(r), json.loads(r["extents"]), r["first"], r["last"])
        for r in history
    ]
    assert said == expected, name


def _microseconds(row: Row) -> int:
    return (row["stamp"] - datetime.fromtimestamp(0, UTC)) // timedelta(microseconds=1)


# --- rows -------------------------------------------------------------------------------------------------------------


def _check_offsets(rows: Mapping[int, list[tuple[int, int, int, str]]]) -> None:
    """Of each partition every offset once, in the order of the transactions, from the first one without gaps."""
    ends: Counter[int] = Counter()
    for txid, some in rows.items():
        for partition, offset, *_ in some:
            assert offset == ends[partition], f"txid {txid}, partition {partition}: {offset}, not {ends[partition]}"
            ends[partition] += 1


def _check_counts(data_dir: Path, rows: Mapping[int, list[tuple[int, int, int, str]]]) -> None:
    """What a transaction changed is what its rows add to what was there before it."""
    added = Counter((txid, word) for txid, some in rows.items() for *_, word in some)
    now: dict[str, int] = {}
    for change in sorted(_rows(data_dir / "changes/counts"), key=lambda row: row["_txid"]):
        word, before = change["word"], (change["_prev"] or {"n": 0})["n"]
        assert before == now.get(word, 0), change
        assert change["n"] - before == added.pop((change["_txid"], word), None), change
        now[word] = change["n"]
    assert not added, f"rows that are not counted: {added}"
    assert {row["word"]: row["n"] for row in _rows(data_dir / "state/counts")} == now


def _check_totals(data_dir: Path, rows: Mapping[int, list[tuple[int, int, int, str]]]) -> None:
    before, expected = None, []
    for txid, some in rows.items():
        now = {"rows": (before or {"rows": 0})["rows"] + len(some), "txid": txid}
        expected.append((txid, now, before))
        before = now
    changes = sorted(_rows(data_dir / "changes/totals"), key=lambda row: row["_txid"])
    found = [(row["_txid"], {"rows": row["rows"], "txid": row["txid"]}, row["_prev"]) for row in changes]
    assert found == expected
    assert [{"rows": row["rows"], "txid": row["txid"]} for row in _rows(data_dir / "state/totals")] == [before]
