"""The query commands ``txstorm snapshot``, ``txstorm changes`` and ``txstorm views``."""

import pytest

DATA = "txstorm-data/words"


@pytest.fixture
def done(txstorm):
    txstorm.printed("run", "words", "--engine", "local", "--available-now")


def test_a_snapshot_changes_and_views(done, txstorm):
    words = [{"word": "cat"}, {"word": "dog"}]
    tables = {"state/counts": [{**one, "n": 1} for one in words], "sinks/log": [{**one, "_txid": 1} for one in words]}
    assert txstorm.json("snapshot", DATA, "--txid", "1") == {"txid": 1, "tables": tables}
    code, out, err = txstorm("snapshot", DATA, "--limit", "2")  # for people
    assert code == 0
    assert "word  n" in out
    assert "state/counts: 3 rows; 2 shown, --limit shows more, --json all" in err
    assert err.endswith(f"{DATA} as of txid 3\n")
    assert txstorm.json("changes", DATA, "counts", "3", "3") == {
        "state": "counts",
        "changes": [
            {"word": "cat", "n": 3, "_txid": 3, "_prev": {"n": 2}, "_op": "u"},
            {"word": "dog", "n": 2, "_txid": 3, "_prev": {"n": 1}, "_op": "u"},
        ],
    }
    code, out, err = txstorm("changes", DATA, "counts", "1", "3")
    assert (code, out.count("\n")) == (0, 7)
    assert "changes/counts, txids 1 to 3: 6 rows" in err
    lines = txstorm.printed("views", DATA, "--name-prefix", "words_").splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("CREATE OR REPLACE TEMP VIEW `words_state_counts` AS SELECT `word`, `n` FROM (")
    assert all(line.endswith(";") for line in lines)
    assert list(txstorm.json("views", DATA)["views"]) == ["state_counts", "changes_counts", "sink_log"]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("changes", DATA, "counts", "1", "4"), "state 'counts': txid 4 is not committed; the last one is 3"),
        (("changes", DATA, "counts", "2", "1"), "expected 1 <= from <= to, got from txid 2 to 1"),
        (("changes", DATA, "count", "1", "1"), "no state 'count' (did you mean 'counts'?)"),
        (("snapshot", DATA, "--txid", "9"), "txid 9 is not committed; the last one is 3: ask for 0 to 3"),
        (("views", DATA, "--txid", "9"), "txid 9 is not committed; the last one is 3: ask for 0 to 3"),
        (("views", "nowhere"), "data directory nowhere does not exist"),
    ],
)
def test_bad_input(done, txstorm, command, message):
    assert message in txstorm.refused(*command)
