"""Admission of new transactions, and the width of the in-flight window."""

from typing import Any

import pytest
from runtime_samples import Clock, Source

from txstorm.runtime.batches.admission import Admission
from txstorm.runtime.batches.in_flight import InFlightWindow


def opens(gate: Admission, txid: int = 1, taken: int | None = None, **changes: Any) -> bool:
    limits = {"in_flight": 0, "width": 4, **changes}
    return gate.opens(txid, None if taken is None else {"taken": taken}, **limits)


def test_window_bytes_in_flight_unpublished_groups_min_interval_and_until_txid_limit_admission() -> None:
    gate = Admission(Source(9), monotonic=Clock(), max_bytes=100)
    assert opens(gate, in_flight=3)
    assert not opens(gate, in_flight=4)
    gate.hold(1, 60)
    gate.hold(2, 40)
    assert opens(gate)
    gate.hold(3, 1)
    assert not opens(gate)
    gate.release(2)
    gate.release(9)
    assert opens(gate)
    gate.blocked = True  # a decided group cannot be published
    assert not opens(gate)
    gate.blocked = False
    assert opens(gate)
    assert not gate.closed
    clock = Clock()
    gate = Admission(Source(9), monotonic=clock, min_interval=10)
    assert opens(gate)
    assert gate.wait() == 10
    clock.now += 9
    assert not opens(gate)
    assert gate.wait() == pytest.approx(1)
    clock.now += 1
    assert opens(gate)
    assert not opens(gate)
    gate = Admission(Source(9), monotonic=Clock(), until_txid=2)
    assert opens(gate, 2)
    assert not gate.closed
    assert not opens(gate, 3)
    assert gate.closed
    assert [gate.past(txid) for txid in (1, 2, 3)] == [False, False, True]


def bounded(source: Source, **options: Any) -> Admission:
    gate = Admission(source, monotonic=Clock(), **options)
    gate.bound()
    return gate


def test_available_now_ends_at_present_data_until_txid_or_an_empty_batch_and_data_only_stays_open() -> None:
    source = Source(2)
    gate = bounded(source)
    source.held = 5
    assert opens(gate, 1)
    assert opens(gate, 2, taken=1)
    assert not opens(gate, 3, taken=2)
    assert gate.closed
    gate = bounded(Source(0))  # an empty source
    assert not opens(gate)
    assert gate.closed
    for until, held in ((1, 5), (5, 1)):
        gate = bounded(Source(held), until_txid=until)
        assert opens(gate, 1)
        assert not opens(gate, 2, taken=1)
        assert gate.closed
    gate = bounded(Source(tells=False))
    gate.saw(3)
    assert opens(gate)
    gate.saw(0)
    assert not opens(gate)
    assert gate.closed
    source = Source(1)
    gate = Admission(source, monotonic=Clock())
    assert opens(gate, 2, taken=1)
    gate.data_only()
    assert not opens(gate, 2, taken=1)
    assert not gate.closed
    source.held = 2
    assert opens(gate, 2, taken=1)
    gate = Admission(Source(tells=False), monotonic=Clock())
    gate.data_only()
    assert opens(gate, 2, taken=1)  # a source without marks is polled


@pytest.mark.parametrize(
    ("pending", "limit", "width", "pack"),
    [(1, None, 1, 1), (4, None, 4, 2), (8, 3, 8, 3), (8, 100, 8, 4), (5, 1, 5, 1)],
)
def test_pack_size_with_a_fixed_window(pending: int, limit: int | None, width: int, pack: int) -> None:
    window = InFlightWindow(pending, limit)
    window.job_took(0.1, 0.09, 1)
    assert (window.width, window.pack_size) == (width, pack)


def short_jobs(window: InFlightWindow, jobs: int = 20) -> tuple[int, int]:
    """Report short jobs of full packs; return width and pack size after them."""
    for _ in range(jobs):
        window.job_took(0.1, 0.0, window.pack_size)
        assert window.pending is not None or window.pack_size <= window.width // 2
    return window.width, window.pack_size


def test_packs_grow_while_full_jobs_do_little_work_and_shrink_when_they_take_long() -> None:
    assert short_jobs(InFlightWindow(5, None), 4) == (5, 5)  # they fill a fixed window
    window = InFlightWindow(None, 3)  # max_pack_txids bounds them
    for _ in range(20):
        window.job_took(0.1, 0.0, 128)
    assert window.pack_size == 3
    window = InFlightWindow(None, None)
    assert (window.width, window.pack_size) == (8, 1)
    assert short_jobs(window) == (256, 128)
    window.job_took(3.5, 3.0, 128)
    assert window.pack_size == 64
    for _ in range(3):
        window.job_took(3.5, 3.0, 64)  # of concurrent jobs, the first shrinks the packs
    assert (window.width, window.pack_size) == (256, 32)
    window.job_took(2.0, 0.1, 32)  # a pack of twice the size would take too long
    assert (window.width, window.pack_size) == (256, 32)
    for size in (32, 16, 8, 4, 2):
        window.job_took(3.5, 3.0, size)
    assert (window.width, window.pack_size) == (32, 1)  # the window shrinks later
    window = InFlightWindow(None, None)
    window.job_took(0.1, 0.09, 1)
    assert window.pack_size == 1
    window.pack = 8
    window.job_took(0.1, 0.0, 5)
    assert window.pack_size == 8
