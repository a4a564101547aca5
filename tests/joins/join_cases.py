"""Interval joins over fed rows, and what their transactions give, as short texts."""

import re
from datetime import UTC, datetime, timedelta

from fed import fed_bolt

from txstorm.joins import IntervalJoin, Side
from txstorm.testing import ManualClock, TopologyTestDriver

FIELDS = ("id", "key", "ts", "part")
ROW = re.compile(r"(\w+?)(?:\.([\w-]+))?@(-?\d+)(?:/(\w+))?")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
END = "end of input"


def ms(number):
    return timedelta(milliseconds=number)


def rows(text):
    """Return the rows of ``id.key@time/partition``; the key is x if there is none, and None if it is ``-``."""
    parts = [ROW.fullmatch(one).groups() for one in text.split()]
    return [(name, None if key == "-" else key or "x", int(time), part) for name, key, time, part in parts]


def side(stream, given=()):
    """Return a side of ``feed``; lag, idle and grace are in milliseconds."""
    times = {"lag", "idle", "grace"}
    options = {name: ms(value) if name in times else value for name, value in dict(given).items()}
    return Side(**{"component": "feed", "stream": stream, "key": "key", "time": "ts", "id": "id", **options})


def topology(*, left=(), right=(), before=10, after=0, how="inner", opaque=False, tasks=1, **options):
    if "select" not in options:
        options["select"] = ["l:id"] if how in ("semi", "anti") else ["l:id", "r:id"]
    sides = side("l", left), side("r", right)
    join = IntervalJoin(*sides, before=ms(before), after=ms(after), how=how, **options)
    return fed_bolt("join", join, dict.fromkeys("lr", FIELDS), sides[0].key, tasks, opaque=opaque).build_topology()


def driver(made, **options):
    return TopologyTestDriver(made, clock=ManualClock(EPOCH), **options)


def feed(running, left, right, **options):
    if left == END:
        return running.end_of_input()
    given = {name: rows(some) if isinstance(some, str) else some for name, some in (("l", left), ("r", right))}
    return running.feed(given, **options)


def ids(found):
    return sorted(one["id"] for one in found.to_pylist())


def seen(running, txid):
    """Return what a transaction gave: results, unmatched left and right rows, then pending and buffered rows."""
    texts = [" ".join("".join(one or "." for one in row) for row in running.emitted("join", txid))]
    texts.append(" ".join(row[0] for row in running.emitted("join", txid, stream="unmatched_left")))
    texts.append(" ".join(sorted(row[0] for row in running.emitted("join", txid, stream="unmatched_right"))))
    return texts + [" ".join(ids(running.state(f"join-{name}"))) for name in ("left", "right")]


def check(running, steps):
    """Check what steps lead to; a step may have a stamp, and after it the sources that are read to their end."""
    for number, (left, right, expected, *how) in enumerate(steps, 1):
        stamp, *caught_up = how[0].split() if how else [None]
        txid = feed(running, left, right, at=stamp and int(stamp), caught_up=caught_up)
        running.commit(txid)
        wanted = [one.strip() for one in expected.split("/")]
        assert seen(running, txid)[: len(wanted)] == wanted, f"step {number}"
