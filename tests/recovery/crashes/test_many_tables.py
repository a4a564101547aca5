"""Many tables stay consistent as of one txid, even if a driver dies after publishing only some."""

import pytest
from recovery_cases import killed, open_books
from scenarios.words import TXIDS, batches
from table_ranges import table_ranges

from txstorm import snapshot

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


@pytest.mark.parametrize("fault", KILLED_BETWEEN)
def test_killed_with_some_of_ten_tables_published(ends_as_undisturbed, data_dir, fault):
    """U13: tables and position are one commit, also in what readers see before the restart."""
    argv = [data_dir, "--tables", TABLES]
    killed(fault, *argv)
    with open_books(data_dir) as books:
        (live,) = books.live_intents()
    lasts = {uri: ranges[-1].last if ranges else 0 for uri, ranges in table_ranges(data_dir).items()}
    there = {table.uri: lasts[table.uri] == live.last for table in live.tables}
    assert set(there.values()) == {True, False}, there  # some are, some are not
    assert snapshot(data_dir).txid == live.first - 1
    check_cuts(data_dir, [live.first - 1])

    ends_as_undisturbed(*argv)
    check_cuts(data_dir, [1, live.first - 1, live.first, live.last, TXIDS])
