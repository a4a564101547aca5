"""The Kafka reader orders records of several partitions that arrive interleaved, with gaps and duplicates.

Consumers of any kind that never close block nothing.
"""

import itertools
import threading
from dataclasses import dataclass

import pytest
from confluent_kafka import Consumer
from seeded import seeded

from txstorm.clients.kafka import cluster, reader
from txstorm.clients.kafka.cluster import GroupPositions, Unavailable, check_settings
from txstorm.clients.kafka.reader import RangeReader, _runs, _Span


@dataclass(frozen=True)
class Record:
    where: tuple[str, int]
    at: int

    def topic(self):
        return self.where[0]

    def partition(self):
        return self.where[1]

    def offset(self):
        return self.at

    def error(self):
        return None


@pytest.mark.parametrize("topics", [["a"], ["a", "b"]])
def test_mixed_partitions_are_distinguished(topics):
    rng = seeded()
    records = [Record((rng.choice(topics), rng.randrange(3)), offset) for offset in range(200)]
    found: dict = {}
    for partition, run, offsets in _runs(records, one_topic=len(topics) == 1):
        assert [one.at for one in run] == offsets.tolist()
        found.setdefault(partition, []).extend(run)
    for partition, run in found.items():
        assert run == [one for one in records if one.where == partition]
    assert sum(map(len, found.values())) == len(records)
    assert list(_runs([], one_topic=True)) == []


def added(span: _Span, *offsets: int) -> None:
    for _, run, at in _runs([Record(("a", 0), offset) for offset in offsets], one_topic=True):
        span.add(run, at)


def test_a_span_returns_each_record_once_in_order():
    span = _Span("id", 5, 5)
    added(span, 3, 4, 5, 6, 9)
    added(span, 6, 9, 10, 10, 7, 12)
    assert [one.at for one in span.cut(5, 10)] == [5, 6, 9]
    assert (span.start, span.known) == (10, 13)
    assert span.holds(10)
    assert not span.holds(9)
    assert [one.at for one in span.cut(10, 12)] == [10]
    added(span, 14)
    assert [one.at for one in span.cut(12, 20)] == [12, 14]
    assert span.cut(20, 30) == []


class BusyConsumer:
    """A consumer that endlessly receives records of partition 0 of topic ``a``, and none of other partitions."""

    def __init__(self) -> None:
        self.offsets = itertools.count()

    def assign(self, positions):
        pass

    def consume(self, most, timeout):
        return [Record(("a", 0), next(self.offsets)) for _ in range(min(most, 5))]


@pytest.mark.timeout(60)
def test_a_partition_without_records_is_reported_although_records_of_others_keep_arriving(monkeypatch):
    monkeypatch.setattr(reader, "consumer", lambda settings, troubles: BusyConsumer())
    busy = RangeReader({})
    with pytest.raises(Unavailable, match=r"no records received from a/1 from offset 7 of 7\.\.8"):
        busy.read({("a", 0): (0, 20), ("a", 1): (7, 9)}, {"a": "id"}, 0.3)


NOWHERE = {"bootstrap.servers": "127.0.0.1:1"}


def write_positions():
    group = GroupPositions(NOWHERE, "g")
    group.committed({("a", 0): 7})
    group.close()


@pytest.mark.parametrize(
    "use",
    [lambda: RangeReader(NOWHERE).close(), write_positions, lambda: check_settings({})],
    ids=["reader", "group", "settings"],
)
def test_a_consumer_that_never_closes_blocks_nothing(monkeypatch, caplog, use):
    freed, closed = threading.Event(), threading.Event()

    class Library(Consumer):
        def close(self):
            freed.wait(5)
            closed.set()

    class Stuck(cluster._Consumer, Library):
        pass

    monkeypatch.setattr(cluster, "_Consumer", Stuck)
    monkeypatch.setattr(cluster, "CLOSING", 0.1)
    use()
    assert not closed.is_set()
    assert "has not closed within 0.1 s" in caplog.text
    freed.set()
    assert closed.wait(20)
