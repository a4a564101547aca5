"""Many tables, of one source or two, stay consistent as of one txid, even if a driver dies after publishing only some."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from recovery_cases import check, ends, killed, long_if, open_books
from scenarios.sides import CAPS, ROWS
from scenarios.sides import lines as side_lines
from scenarios.words import TXIDS, batches
from table_ranges import table_ranges

from txstorm import snapshot
from txstorm.results.views import read_directory_history

pytestmark = pytest.mark.integration

TABLES = 10
KILLED_BETWEEN = [
    # One table hangs before it is published; when another one is, the driver dies.
    "p7.6.before:hang:3,p7.10.after:kill:3",
    "p7.1.before:hang:2,p7.9.after:kill:2",
]


def check_cuts(data_dir, txids) -> None:
    """Check that all ten tables, as of each of `txids`, contain exactly the transactions up to that txid."""
    for txid in txids:
        cut, words = snapshot(data_dir, txid), [word for batch in batches("memory")[:txid] for word in batch]
        assert len(cut.states) + len(cut.sinks) == TABLES
        counted = {row["word"]: row["n"] for row in cut.state("counts").to_arrow().to_pylist()}
        assert counted == {word: words.count(word) for word in set(words)}
        (total,) = cut.state("totals").to_arrow().to_pylist()
        assert (total["words"], total["letters"], total["txid"]) == (len(words), sum(map(len, words)), txid)
        for i in range(6):
            found = {row["word"]: row["n"] for row in cut.state(f"longer_{i}").to_arrow().to_pylist()}
            assert found == {word: n for word, n in counted.items() if len(word) > i}
        assert sorted(cut.sink("words").to_arrow()["word"].to_pylist()) == sorted(words)
        assert cut.sink("lines").to_arrow().num_rows == 4 * txid


def test_ten_tables_under_one_txid(data_dir):
    argv = [data_dir, "--tables", TABLES, "--set", "max_group_txids=1"]
    ends(*argv)
    check(data_dir, TXIDS)
    check_cuts(data_dir, [1, TXIDS // 2, TXIDS])


@pytest.mark.parametrize("fault", KILLED_BETWEEN)
def test_killed_with_some_of_ten_tables_published(ends_as_undisturbed, data_dir, fault):
    argv = [data_dir, "--tables", TABLES]
    killed(fault, *argv)
    with open_books(data_dir) as books:
        (live,) = books.live_intents()
    lasts = {uri: ranges[-1].last if ranges else 0 for uri, ranges in table_ranges(data_dir).items()}
    there = {table.uri: lasts[table.uri] == live.last for table in live.tables}
    assert set(there.values()) == {True, False}, there  # some are, some are not

    ends_as_undisturbed(*argv)
    check_cuts(data_dir, [live.first - 1, live.first, live.last])


# --- two sources -----------------------------------------------------------------------------------------------------

END = max(-(-ROWS[side] // cap) for side, cap in CAPS.items())
# Each transaction changes six tables: ids, counts and rows of either side.
WRITTEN = [f"p7.{table}.written" for table in range(1, 7)]
POINTS = ("p6.before", "p6.after", *WRITTEN, "p7.2.before", "p7.4.before", "p7.6.before", "p8.before")
ONLY_LONG = (*WRITTEN[1::2], "p7.2.before", "p7.4.before")


def model(side: str, txid: int) -> tuple[list[str], dict[str, int]]:
    """Return the rows and the counts of a side as of a txid."""
    read = side_lines(side)[: CAPS[side] * txid]
    return list(dict.fromkeys(read)), dict(Counter(read))


def check_sides(data_dir: Path, txid: int) -> None:
    """Check that all tables are as of `txid`, and that it has the positions of both sources."""
    cut = snapshot(data_dir)
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
            read = side_lines(side)[: CAPS[side] * number]
            assert source["meta"]["position"]["offset"] == sum(len(line) + 1 for line in read)


@pytest.mark.parametrize("point", long_if(lambda point: point in ONLY_LONG, POINTS))
def test_no_table_is_ahead_after_a_kill_between_two_of_them(data_dir, point):
    """U13, A1, A3: tables and positions of both sides are one commit, also in what readers see before the restart."""
    killed(f"{point}:kill:2", data_dir, scenario="sides")
    committed = snapshot(data_dir).txid
    assert 0 < committed < END
    check_sides(data_dir, committed)
    ends(data_dir, scenario="sides")
    check_sides(data_dir, END)
