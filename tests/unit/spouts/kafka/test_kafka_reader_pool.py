"""Pool of Kafka readers: the choice of the reader to reuse, the size of the pool, and the idle timeout."""

import time
from contextlib import ExitStack

import pytest
from runtime_samples import Clock

from txstorm.spouts.kafka import reader_pool
from txstorm.spouts.kafka.reader_pool import IDLE, LONGEST_IDLE, Readers


class Reader:
    """A fake reader; `at` is the pair of offset and topic id at which it is positioned."""

    def __init__(self, settings, isolation) -> None:
        self.settings, self.at, self.closed, self.rested = settings, None, False, 0

    def fits(self, ranges, ids) -> int:
        return sum((start, ids.get(topic)) == self.at for (topic, _), (start, _) in ranges.items())

    def rest(self) -> None:
        self.rested += 1

    def close(self) -> None:
        self.closed = True


A = {"bootstrap.servers": "a"}
IDS = {"t": "id"}


@pytest.fixture
def readers():
    return Readers(Reader)


def lend(readers, start=0, settings=A, ids=IDS):
    return readers.lend(settings, "read_committed", {("t", 0): (start, start + 1)}, ids)


def test_a_reader_is_reused_for_the_same_settings_at_best_one_at_the_start_of_the_range(readers):
    with lend(readers) as first:
        pass
    with lend(readers) as again, lend(readers) as other, lend(readers, settings={**A, "x": 1}) as third:
        assert again is first
    assert len({first, other, third}) == 3
    assert first.rested == 2
    with lend(readers) as one, lend(readers) as two:
        one.at, two.at = (5, "id"), (9, "id")
    for start, reader in [(9, two), (5, one), (9, two)]:
        with lend(readers, start) as lent:
            assert lent is reader


def test_a_failed_reader_and_idle_ones_with_its_settings_are_not_reused(readers):
    with lend(readers), lend(readers) as waiting, lend(readers, settings={**A, "x": 1}) as other:
        pass
    waiting.at = (5, "id")
    with pytest.raises(ValueError, match="nothing came"), lend(readers) as failed:
        raise ValueError("nothing came")
    assert failed.closed and waiting.closed and not other.closed
    with lend(readers, 5) as lent:
        assert lent not in (failed, waiting)


def test_the_number_of_idle_readers_is_limited(readers):
    with ExitStack() as stack:
        lent = [stack.enter_context(lend(readers)) for _ in range(IDLE + 3)]
    assert [reader.closed for reader in lent].count(True) == 3


def test_readers_idle_for_too_long_are_closed():
    clock = Clock()
    readers = Readers(Reader, clock)
    with lend(readers) as one, lend(readers) as two:
        pass
    clock.now += LONGEST_IDLE
    with lend(readers) as lent:
        pass
    assert {one.closed, two.closed} == {True, False} and not lent.closed
    readers.close()
    assert one.closed and two.closed


def test_idle_readers_are_closed_even_if_none_is_needed_any_more_but_never_one_that_is_lent(readers, monkeypatch):
    monkeypatch.setattr(reader_pool, "LONGEST_IDLE", 0.3)
    with lend(readers) as one:
        pass
    time.sleep(0.2)  # the second reader is due later than the first, for which the timer is set
    with lend(readers, settings={**A, "x": 1}) as other:
        pass
    until = time.monotonic() + 30
    while not (one.closed and other.closed) and time.monotonic() < until:
        time.sleep(0.01)
    assert one.closed and other.closed
    with lend(readers) as again:
        assert again is not one
    monkeypatch.setattr(reader_pool, "LONGEST_IDLE", 0.05)
    with lend(readers, settings={**A, "x": 1}) as other:
        pass
    with lend(readers) as lent:
        while not other.closed:
            time.sleep(0.01)
        assert not lent.closed
