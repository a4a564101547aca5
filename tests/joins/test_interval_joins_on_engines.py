"""Interval join on both engines: the article's deadlock, all rows of either side once, a pause of the right side."""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from runs import ended

from txstorm import CompositeSpout, Duration, Topology, TransactionalTopologyBuilder
from txstorm.bolts import Map
from txstorm.joins import IntervalJoin, Side
from txstorm.sinks import DeltaSink
from txstorm.spouts import FileSpout

BEFORE, AFTER = 10, 2
Row = tuple[str, int, str]
"""Key, time in seconds, id."""


def parsed(row: Any) -> Row:
    key, at, name = json.loads(row["line"])
    return key, at, name


def topology(tmp_path: Path, sides: dict[str, Sequence[Row]], caps: tuple[int, int], **right: Any) -> Topology:
    """Build a full join of two files, of which a transaction reads `caps` rows each, with all its streams in sinks."""
    for name, rows in sides.items():
        (tmp_path / f"{name}.txt").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    files = {
        name: FileSpout(tmp_path / f"{name}.txt", max_batch_rows=cap) for name, cap in zip(sides, caps, strict=True)
    }
    builder = TransactionalTopologyBuilder("sides", "files", CompositeSpout(files), 2)
    for name in sides:
        builder.set_bolt(name, Map(parsed, "key", "at", "id"), 2).shuffle_grouping("files", name)
    options = {"key": "key", "time": "at", "unit": "s", "id": "id"}
    join = IntervalJoin(
        Side("left", **options),
        Side("right", **options, **right),
        before=Duration.seconds(BEFORE),
        after=Duration.seconds(AFTER),
        how="full",
        select=["left:id", "right:id"],
    )
    builder.set_bolt("join", join, 2).fields_grouping("left", ["key"]).fields_grouping("right", ["key"])
    pair = {"left_id": str, "right_id": str}
    for stream, columns in {
        "default": pair,
        "unmatched_left": {"key": str, "at": int, "id": str},
        "unmatched_right": {"key": str, "at": int, "id": str},
    }.items():
        builder.set_bolt(f"keep-{stream}", DeltaSink(stream, columns)).global_grouping("join", stream)
    return builder.build_topology()


def joined(left: Sequence[Row], right: Sequence[Row]) -> set[tuple[str | None, str | None]]:
    """Return the rows of a full join, as a loop over all rows finds them."""
    pairs = {(a[2], b[2]) for a in left for b in right if a[0] == b[0] and a[1] - BEFORE <= b[1] <= a[1] + AFTER}
    alone = {(a[2], None) for a in left} | {(None, b[2]) for b in right}
    matched = {one for pair in pairs for one in pair}
    return pairs | {(a, b) for a, b in alone if (a or b) not in matched}


def test_a_right_side_far_behind_catches_up_and_every_row_comes_out_once(make_engine: Any, tmp_path: Path):
    """A2, A5, A6, A18, A20, A22, U6, U9: the article's deadlock, with room for five right rows in a transaction."""
    left = [(f"k{n % 3}", 1000 + n, f"l{n}") for n in range(12)]
    old = [(f"k{n % 3}", 23 * n, f"old{n}") for n in range(40)]
    new = [(f"k{n % 4}", 988 + 3 * n, f"r{n}") for n in range(8)]
    sides = {"left": left, "right": [*old, *new]}
    handle = ended(topology(tmp_path, sides, (4, 5)), tmp_path / "data", make_engine(), end_of_input=True)
    found = [(row["left_id"], row["right_id"]) for row in handle.sink("default").to_pylist()]
    wanted = joined(left, sides["right"])
    assert len(found) == len(wanted)
    assert set(found) == wanted
    alone = {
        name: [row["id"] for row in handle.sink(name).to_pylist()] for name in ("unmatched_left", "unmatched_right")
    }
    assert sorted(alone["unmatched_left"]) == sorted(a for a, b in wanted if b is None)
    assert sorted(alone["unmatched_right"]) == sorted(b for a, b in wanted if a is None)
    kept = [len(handle.state("join-right").as_of(txid).to_pylist()) for txid in range(3, 9)]
    assert kept == [0] * len(kept)  # what is too old expires in the transaction that reads it


@pytest.mark.parametrize("grace", [None, Duration(0)])
def test_a_paused_right_side_holds_back_for_its_grace_and_no_longer(make_engine: Any, grace: Any, tmp_path: Path):
    """A17, U7: left rows wait in a table, or are released as soon as the right side has been read to its end."""
    hour = int(time.time()) - 3600
    sides = {"left": [("k", hour, "l0"), ("k", hour + 60, "l1")], "right": [("k", hour - 1, "r0")]}
    handle = ended(topology(tmp_path, sides, (10, 10), grace=grace), tmp_path / "data", make_engine())
    found = [(row["left_id"], row["right_id"]) for row in handle.sink("default").to_pylist()]
    pending = [row["id"] for row in handle.state("join-left").to_pylist()]
    assert (found, pending) == (([], ["l0", "l1"]) if grace is None else ([("l0", "r0"), ("l1", None)], []))
