"""The rules of windows one by one: what is late, what fires when, and what is new and expired, at the boundaries."""

from datetime import UTC, datetime
from functools import partial

import pytest
from window_bolts import Emitting
from window_cases import at, committed, driver, topology

from txstorm import Count, Duration
from txstorm.errors import InputError

SECONDS = Duration.seconds
END = "end of input"


def row(window):
    parts = (window.get(), window.get_new(), window.get_expired())
    texts = ("".join(one["id"] for one in part) for part in parts)
    start = "" if window.start_timestamp is None else window.start_timestamp
    return [f"{start}..{window.end_timestamp} {'/'.join(texts)}"]


Rows = partial(Emitting, "window", row)
"""Each window as ``start..end content/new/expired``: times in milliseconds, and the ids of tuples."""


def fired(running, txid):
    return ", ".join(text for (text,) in running.emitted("w", txid))


def timed(text):
    """Return the tuples of a text such as ``a@1000 b@2000``."""
    return [(name, int(time)) for name, _, time in (word.partition("@") for word in text.split())]


def by_capital(one):
    return one["id"].isupper()


def form(length, slide=None, **closed):
    return lambda: Rows().with_window(length, slide, **closed)


TUMBLING, LEFT = form(SECONDS(1), SECONDS(1)), form(SECONDS(1), SECONDS(1), closed="left")
# Form, tuples of each transaction → windows that fire, and the ids of late tuples.
CASES = {
    "times before 1970": (
        form(SECONDS(2), SECONDS(1)),
        {"a@-2500 b@-2000 c@-1 d@0 e@1": "-4000..-2000 ab/ab/, -3000..-1000 ab//, -2000..0 cd/cd/ab"},
    ),
    "t = W, all its windows have fired": (TUMBLING, {"a@1000": "0..1000 a/a/", "b@1000 c@1001": ""}, "b"),
    "t = W, its window is open": (TUMBLING, {"a@500": "", "b@500 c@1000": "0..1000 abc/abc/"}),
    "t = W, one of its windows is open": (
        form(SECONDS(2), SECONDS(1)),
        {"a@1000": "-1000..1000 a/a/", "b@1000 c@2000": "0..2000 abc/bc/"},
    ),
    "t < W, its window is open": (form(SECONDS(2), SECONDS(1)), {"a@1500": "", "b@1499 c@2000": "0..2000 ac/ac/"}, "b"),
    "t = W in no window at all": (form(SECONDS(1), SECONDS(3)), {"a@500": "", "b@500": ""}, "b"),
    "t = W is never late for a count length": (
        form(Count(2), SECONDS(1)),
        {"a@1000": "..1000 a/a/", "b@1000 c@2000": "..2000 bc/bc/a"},
    ),
    "t = W is never late for sessions": (
        lambda: Rows().with_session_window(SECONDS(1)),
        {"a@1000": "", "b@1000": "", "c@2000": "1000..2000 ab/ab/", "d@2000 e@1999": "", END: "2000..3000 cd/cd/"},
        "e",
    ),
    "closed on the left: E belongs to the next window, also before 1970": (
        LEFT,
        {
            "a@-1001 b@-1000 c@-1 d@0 e@999 f@1000": "-2000..-1000 a/a/, -1000..0 bc/bc/a, 0..1000 de/de/bc",
            "g@1000 h@2000": "1000..2000 fg/fg/de",
        },
    ),
    "closed on the left: at W the next window, before W late": (
        form(SECONDS(2), SECONDS(1), closed="left"),
        {"a@0": "", "b@999 c@1000": "-1000..1000 ab/ab/", "d@1000 e@999 f@2000": "0..2000 abcd/cd/"},
        "e",
    ),
    "closed on the left: at W in no window at all": (
        form(SECONDS(1), SECONDS(3), closed="left"),
        {"a@3000": "", "b@3000 c@2999 d@5000": "", "e@6000": "5000..6000 d/d/a", "f@6000 g@8000": ""},
        *("b", "c", "f"),
    ),
    "closed on the left: a count length": (
        form(Count(2), SECONDS(1), closed="left"),
        {"a@1000": "", "b@1000 c@1999 d@2000": "..2000 bc/bc/a", "e@2000": "", END: "..3000 de/de/bc"},
    ),
    "late by the watermark before": (TUMBLING, {"a@1500": "", "b@9000 c@1600": "1000..2000 ac/ac/, 8000..9000 b/b/ac"}),
    "counts with equal timestamps": (
        form(Count(3), Count(2)),
        {"a@0 b@0 c@0 d@0 e@0": "..0 ab/ab/, ..0 bcd/cd/a", "f@0": "..0 def/ef/bc"},
    ),
    "a length in time at every tuple, also those of the same timestamp counted later": (
        form(SECONDS(1), Count(2)),
        {"a@0 b@1000 c@1000 d@1000 e@2500": "0..1000 bcd/bcd/a, 0..1000 bcd//"},
    ),
    "a time and no slide": (form(SECONDS(1)), {"a@0 b@1000 c@1500": "-1000..0 a/a/, 0..1000 b/b/a, 500..1500 bc/c/"}),
    "a count length fires every end, at the end of input up to the newest tuple": (
        form(Count(2), SECONDS(1)),
        {"a@500 b@600 c@3500": "..1000 ab/ab/, ..2000 ab//, ..3000 ab//", END: "..4000 bc/c/a"},
    ),
    "a count length whose newest tuple is on an end": (form(Count(2), SECONDS(1)), {"a@3000": "..3000 a/a/", END: ""}),
    "expired tuples that were in no window": (
        form(SECONDS(1), SECONDS(3)),
        {"a@500 b@2500 c@3500 d@5500 e@6000": "2000..3000 b/b/a, 5000..6000 de/de/bc"},
    ),
    "counts that skip tuples": (form(Count(1), Count(3)), {"a@0 b@1 c@2 d@3 e@4 f@5 g@6": "..2 c/c/ab, ..5 f/f/cde"}),
    "expired over a gap": (
        TUMBLING,
        {"a@500": "", "b@1500": "0..1000 a/a/", "c@10500": "1000..2000 b/b/a", END: "10000..11000 c/c/b"},
    ),
    "a trigger": (form(Count(2), by_capital), {"a@0 b@1 C@2 D@3 e@4": "..2 bC/bC/a, ..3 CD/D/b"}),
    "sessions that touch are two": (
        lambda: Rows().with_session_window(SECONDS(1)),
        {"a@0 b@1000 c@1999": "0..1000 a/a/", END: "1000..2999 bc/bc/"},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_rule_of_event_time(name):
    make, batches, *late = CASES[name]
    with driver(topology(make().with_timestamp_field("ts"))) as running:
        for rows, expected in batches.items():
            txid = running.end_of_input() if rows == END else running.feed({"s1": timed(rows)})
            running.commit(txid)
            assert fired(running, txid) == expected
        assert [row[4][0] for row in running.late("w")] == late


PROCESSING = {
    "tuples of a stamp on an end, and of a later transaction at the same stamp": (
        form(SECONDS(10), SECONDS(10)),
        [(10, "a", "0..10000 a/a/"), (10, "b", ""), (20, "c", "10000..20000 bc/bc/a")],
    ),
    "closed on the left: a stamp on an end is in the next window": (
        form(SECONDS(10), SECONDS(10), closed="left"),
        [(10, "ab", ""), (20, "c", "10000..20000 ab/ab/"), (25, "", ""), (END, "", "20000..30000 c/c/ab")],
    ),
    "a length in time at every second tuple: those counted so far": (
        form(SECONDS(5), Count(2)),
        [(1, "abcd", "-4000..1000 ab/ab/, -4000..1000 abcd/cd/")],
    ),
    "a count length": (
        form(Count(2), SECONDS(10)),
        [(10, "abc", "..10000 bc/bc/a"), (25, "", "..20000 bc//"), (25, "d", ""), (END, "", "..30000 cd/d/b")],
    ),
    "sessions": (
        lambda: Rows().with_session_window(SECONDS(5)),
        [(1, "a", ""), (5.999, "b", ""), (11, "c", "1000..10999 ab/ab/")],
    ),
}


@pytest.mark.parametrize("name", PROCESSING)
def test_a_rule_of_processing_time(name):
    """The stamp takes the place of the watermark: tuples are added first, and nothing is late."""
    make, batches = PROCESSING[name]
    with driver(topology(make())) as running:
        for when, names, expected in batches:
            if when == END:
                txid = running.end_of_input()
            else:
                txid = running.feed({"s1": [(one, 0) for one in names]}, at=at(when))
            running.commit(txid)
            assert fired(running, txid) == expected
        assert running.late("w") == []


def test_the_watermark_interval_counts_stamps_and_ends_with_the_input():
    bolt = Rows().with_tumbling_window(SECONDS(1)).with_timestamp_field("ts").with_watermark_interval(SECONDS(1))
    with driver(topology(bolt)) as running:
        for when, time, expected in [(0, 500, 0.5), (0.999, 1500, 0.5), (1, 700, 1.5), (1.001, 2700, 1.5)]:
            committed(running, [("a", time)], when)
            assert running.watermark("w") == at(expected)
        running.commit(running.end_of_input())
        assert running.watermark("w") == datetime.max.replace(tzinfo=UTC)
        with pytest.raises(InputError, match="the input ended with txid 5; nothing can follow it"):
            running.feed({"s1": []})


@pytest.mark.parametrize("component", ["feed", "nothing"])
def test_only_components_with_windows_have_watermarks(component):
    with driver(topology(TUMBLING().with_timestamp_field("ts"))) as running:
        for look in (running.watermark, running.late):
            with pytest.raises(InputError):
                look(component)
