"""Golden results of stream joins: the article's deadlock, and a stream that is away for hours (A5, A6)."""

from join_cases import driver, topology

HOUR = 3_600_000

LEFT = [(f"l{i}", "k", 10_000 + 10 * i, None) for i in range(5)]
RIGHT = [(f"r{i}", "k", 100 * i, None) for i in range(106)]
ROOM = 8


def test_a_right_side_far_behind_expires_catches_up_and_joins():
    """A5, A6: no setting, and no more than the rows of a transaction are ever buffered until it has caught up."""
    with driver(topology(how="left")) as running:
        running.commit(running.feed({"l": LEFT}))
        rows = list(RIGHT)
        while rows:
            batch, rows = rows[:ROOM], rows[ROOM:]
            running.commit(running.feed({"r": batch}))
            assert len(running.state("join-right").to_pylist()) <= ROOM
        assert running.emitted("join") == [("l0", "r100"), ("l1", "r100"), *((f"l{i}", None) for i in (2, 3, 4))]
        assert running.state("join-left").to_pylist() == []
        unmatched = running.emitted("join", stream="unmatched_right")
        assert [row[0] for row in unmatched] == [f"r{i}" for i in range(100)]


def test_every_left_row_once_though_the_right_stream_is_away_for_hours():
    """A17, A20: nothing is released while the right position stands, and nothing is lost when it moves on."""
    with driver(topology(how="left", before=1000)) as running:
        running.commit(running.feed({"l": [("l0", "k", 0, None)], "r": [("r0", "k", 0, None)]}))
        for hour in range(1, 7):
            running.commit(running.feed({"l": [(f"l{hour}", "k", hour * HOUR, None)]}))
        assert running.emitted("join") == []
        assert [row["id"] for row in running.state("join-left").to_pylist()] == [f"l{hour}" for hour in range(7)]
        for hour in range(1, 8):
            running.commit(running.feed({"r": [(f"r{hour}", "k", hour * HOUR - 500, None)]}))
        assert running.emitted("join") == [(f"l{hour}", f"r{hour}") for hour in range(7)]
