"""Golden results of stream joins: the article's deadlock, and a stream that is away for hours (A5, A6)."""

from collections import deque
from datetime import UTC, datetime

from txstorm import Duration, TransactionalTopologyBuilder
from txstorm.joins import IntervalJoin, Side
from txstorm.testing import FeedSpout, ManualClock, TopologyTestDriver

HOUR = 3_600_000
FIELDS = ("key", "ts", "id")


def joined(how="left", before=10, **of_sides):
    sides = [Side("feed", name, key="key", time="ts", id="id", **of_sides.get(name, {})) for name in "lr"]
    join = IntervalJoin(*sides, before=Duration(before), how=how, select=["l:id", "r:id"])
    builder = TransactionalTopologyBuilder("t", "feed", FeedSpout({"l": FIELDS, "r": FIELDS}))
    declarer = builder.set_bolt("join", join)
    for name in "lr":
        declarer.fields_grouping("feed", name, ["key"])
    return TopologyTestDriver(builder.build_topology(), clock=ManualClock(datetime(1970, 1, 1, tzinfo=UTC)))


# -- the deadlock of the article -------------------------------------------------------------------------------------------


class FirstVersion:
    """The article's first join: the window expires by the left rows that pass, and takes right rows while it has room."""

    def __init__(self, room, before):
        self.room, self.before = room, before
        self.window, self.results = [], []

    def run(self, left, right):
        """Process both streams until neither can go on; return the rows left over."""
        left, right, position = deque(left), deque(right), None
        moved = True
        while moved:
            moved = False
            if right and len(self.window) < self.room:
                row = right.popleft()
                self.window.append(row)
                position = row[1]
                moved = True
            if left and position is not None and left[0][1] <= position:
                row = left.popleft()
                self.window = [other for other in self.window if other[1] >= row[1] - self.before]
                matches = [other[2] for other in self.window if other[0] == row[0] and other[1] <= row[1]]
                self.results += [(row[2], other) for other in matches or [None]]
                moved = True
        return left, right


LEFT = [("k", 10_000 + 10 * i, f"l{i}") for i in range(5)]
RIGHT = [("k", 100 * i, f"r{i}") for i in range(106)]
ROOM = 8


def test_the_article_s_first_version_stalls_when_the_right_side_is_far_behind():
    version = FirstVersion(ROOM, before=10)
    left, right = version.run(LEFT, RIGHT)
    assert (len(left), len(right)) == (5, 106 - ROOM)
    assert version.results == []
    other = FirstVersion(ROOM, before=10)  # it works while the right side keeps up
    assert other.run(LEFT, RIGHT[-6:])[0] == deque()
    assert ("l0", "r100") in other.results


def test_a_right_side_far_behind_expires_catches_up_and_joins():
    """A5, A6: no setting, and no more than the rows of a transaction are ever buffered until it has caught up."""
    with joined() as driver:
        driver.feed({"l": LEFT})
        driver.commit()
        rows = list(RIGHT)
        while rows:
            batch, rows = rows[:ROOM], rows[ROOM:]
            driver.feed({"r": batch})
            driver.commit()
            assert len(driver.state("join-right").to_pylist()) <= ROOM
        assert driver.emitted("join") == [("l0", "r100"), ("l1", "r100"), *((f"l{i}", None) for i in (2, 3, 4))]
        assert driver.state("join-left").to_pylist() == []
        unmatched = driver.emitted("join", stream="unmatched_right")
        assert [row[2] for row in unmatched] == [f"r{i}" for i in range(100)]


# -- a stream that is away -----------------------------------------------------------------------------------------------------


def test_every_left_row_once_though_the_right_stream_is_away_for_hours():
    """A17, A20: nothing is released while the right position stands, and nothing is lost when it moves on."""
    with joined(before=1000) as driver:
        driver.feed({"l": [("k", 0, "l0")], "r": [("k", 0, "r0")]})
        driver.commit()
        for hour in range(1, 7):
            driver.feed({"l": [("k", hour * HOUR, f"l{hour}")]})
            driver.commit()
        assert driver.emitted("join") == []
        assert [row["id"] for row in driver.state("join-left").to_pylist()] == [f"l{hour}" for hour in range(7)]
        for hour in range(1, 8):
            driver.feed({"r": [("k", hour * HOUR - 500, f"r{hour}")]})
            driver.commit()
        assert driver.emitted("join") == [(f"l{hour}", f"r{hour}") for hour in range(7)]
