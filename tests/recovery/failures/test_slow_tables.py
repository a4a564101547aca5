"""Back-pressure by a slow table: the work in flight is bounded in transactions, bytes and files."""

import threading
import time

import pytest
from recovery_cases import eventually
from watched import Endless

from txstorm import faults
from txstorm.storage.tables.intent import STAGED

PENDING = 12


class Gate:
    """A gate before every commit of a table: blocks them while closed, delays each while open, counts the `passed`."""

    def __init__(self) -> None:
        self.opened, self.passed, self.original = threading.Event(), 0, faults.point

    def __call__(self, name: str) -> None:
        if name == "p7.1.before":
            self.opened.wait()
            time.sleep(0.05)
            self.passed += 1
        self.original(name)


@pytest.fixture
def gate(monkeypatch):
    made = Gate()
    monkeypatch.setattr(faults, "point", made)
    yield made
    made.opened.set()


def files(place) -> int:
    return sum(1 for _ in (place / "data").glob(f"*/*/{STAGED}/*"))


def test_what_runs_ahead_is_bounded(watch, place, gate):
    diary = watch.diary
    handle = watch.start(Endless(), max_spout_pending=PENDING, max_group_txids=2)
    eventually(lambda: len(handle.in_flight) == PENDING)
    eventually(lambda: len(diary.of("process")) == PENDING)
    eventually(lambda: files(place))
    time.sleep(0.5)  # long enough for hundreds of transactions, if somebody let them
    assert len(handle.in_flight) == PENDING
    assert len(diary.of("process")) == PENDING
    assert files(place) <= 2 * 3  # of the group that waits, and of the next one, a file for each table
    assert handle.committed == 0
    gate.opened.set()
    most = 0
    while gate.passed < 20:
        most = max(most, len(handle.in_flight))
        time.sleep(0.005)
    processed, committed = len(diary.of("process")), handle.committed
    handle.stop()
    assert most <= PENDING
    assert committed > 0
    assert processed <= committed + 2 * PENDING  # between the two looks some were committed


def test_pending_work_is_bounded_in_bytes(watch, place, gate):
    """Pending bytes exceed the limit only by the transactions already in flight when it is reached."""
    settings = {"max_spout_pending": 500, "max_in_flight_bytes": 1, "max_pack_txids": 1, "max_jobs": 2}
    handle = watch.start(Endless(), **settings)
    eventually(lambda: files(place))  # the first one waits at the gate
    time.sleep(0.5)
    assert len(watch.diary.of("process")) <= 3  # the one that is too much, and what ran beside it
    gate.opened.set()
    eventually(lambda: handle.committed > 20)
    handle.stop()
