"""Two sources in one transaction: SIGKILL between the tables of one transaction leaves none of them ahead."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from recovery_cases import ends, killed
from scenarios.sides import CAPS, ROWS, lines

import txstorm
from txstorm.results.views import read_directory_history

END = max(-(-ROWS[side] // cap) for side, cap in CAPS.items())
# Each transaction changes six tables: ids, counts and rows of either side.
POINTS = (
    "p6.before",
    "p6.after",
    *(f"p7.{table}.written" for table in (1, 3, 5)),
    "p7.6.before",
    *(pytest.param(f"p7.{table}.written", marks=pytest.mark.long) for table in (2, 4, 6)),
    *(pytest.param(f"p7.{table}.before", marks=pytest.mark.long) for table in (2, 4)),
    "p8.before",
)


def model(side: str, txid: int) -> tuple[list[str], dict[str, int]]:
    """Return the rows and the counts of a side as of a txid."""
    read = lines(side)[: CAPS[side] * txid]
    return list(dict.fromkeys(read)), dict(Counter(read))


def check(data_dir: Path, txid: int) -> None:
    """Check that all tables are as of `txid`, and that it has the positions of both sources."""
    cut = txstorm.snapshot(data_dir)
    assert cut.txid == txid
    tables = cut.to_arrow()
    for side in CAPS:
        rows, counts = model(side, txid)
        assert tables[f"sinks/{side}-rows"]["line"].to_pylist() == rows
        assert {row["line"]: row["n"] for row in tables[f"state/{side}-counts"].to_pylist()} == counts
        assert tables[f"state/{side}-once-ids"]["id"].to_pylist() == sorted(rows)
    history = read_directory_history(data_dir)
    assert history["txid"].to_pylist() == list(range(1, txid + 1))
    for number, text in zip(history["txid"].to_pylist(), history["extents"].to_pylist(), strict=True):
        for side, source in json.loads(text)["sources"].items():
            read = lines(side)[: CAPS[side] * number]
            assert source["meta"]["position"]["offset"] == sum(len(line) + 1 for line in read)


@pytest.mark.parametrize("point", POINTS)
def test_no_table_is_ahead_after_a_kill_between_two_of_them(data_dir, point):
    """U13, A1, A3: tables and positions of both sides are one commit, also in what readers see before the restart."""
    killed(f"{point}:kill:2", data_dir, scenario="sides")
    committed = txstorm.snapshot(data_dir).txid
    assert 0 < committed < END
    check(data_dir, committed)
    ends(data_dir, scenario="sides")
    check(data_dir, END)
