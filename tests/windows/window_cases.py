"""Topologies with one windowed bolt over fed tuples, and what they report."""

from datetime import UTC, datetime, timedelta

from fed import fed_bolt

from txstorm import WindowedBolt
from txstorm.testing import ManualClock, TopologyTestDriver

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
WORKED_EXAMPLES = [
    *(("e1", "6:00:03"), ("e2", "6:00:05"), ("e3", "6:00:07"), ("e4", "6:00:18"), ("e5", "6:00:26"), ("e6", "6:00:36")),
    *(("e7", "8:00:25"), ("e8", "8:00:26"), ("e9", "8:00:27"), ("e10", "8:00:39")),
]
"""The tuples of the source document's worked examples of windows."""


def at(seconds):
    return EPOCH + timedelta(seconds=seconds)


def clock(text):
    hours, minutes, seconds = map(int, text.split(":"))
    return hours * 3600 + minutes * 60 + seconds


def shown(moment):
    return None if moment is None else f"{moment:%-H:%M:%S}"


def ids(tuples):
    return [one["id"] for one in tuples]


class Report(WindowedBolt):
    """Emits start, end, content, new and expired of each window."""

    fields = ("start", "end", "content", "new", "expired")

    def prepare(self, context, collector):
        self.collector = collector

    def execute(self, window):
        some = (ids(window.get()), ids(window.get_new()), ids(window.get_expired()))
        self.collector.emit(shown(window.start), shown(window.end), *some)


def topology(bolt, streams=("s1",), *, parallelism=1, group="global", fields=("id", "ts"), settings=None, opaque=False):
    by = [] if group == "global" else [group]
    builder = fed_bolt("w", bolt, dict.fromkeys(streams, fields), by, parallelism, opaque=opaque)
    return builder.set_settings(settings or {}).build_topology()


def driver(made, start=0, **options):
    return TopologyTestDriver(made, clock=ManualClock(at(start)), **options)


def committed(running, rows, when=None, stream="s1"):
    """Feed and commit `rows`; return what the bolt emitted."""
    txid = running.feed({stream: rows}, at=None if when is None else at(when))
    running.commit(txid)
    return running.emitted("w", txid)


def contents(emitted):
    return [row[2] for row in emitted]
