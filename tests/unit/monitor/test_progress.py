"""What a run reports: the last transactions, totals, and what is in flight."""

from __future__ import annotations

import json

import pytest

from txstorm.api.attempt import TransactionAttempt
from txstorm.coordinator.events import Opened, Planned, Processed, Wake
from txstorm.coordinator.machine import Config, initial, step
from txstorm.monitor.progress import RECENT, Monitor, TransactionProgress


def progress(txid: int, tuples: int = 5) -> TransactionProgress:
    stamp = 1_700_000_000_000_000 + txid
    counts = {"lines": tuples, "split": 2 * tuples}
    return TransactionProgress(txid, txid + 100, stamp, "lines", counts, 2, 1, 12.3456, {"finish": 1.23456}, ("seen",))


def test_progress_counts_the_spouts_tuples_as_input() -> None:
    one = progress(3)
    assert one.numInputRows == 5
    assert one.durationMs == {"process": 12.346, "finish": 1.235}
    assert one.timestamp == "2023-11-14T22:13:20.000003+00:00"
    document = json.loads(one.json)
    assert document["tuples"] == {"lines": 5, "split": 10}
    assert document["reported"] == ["seen"]
    assert "\n" in one.prettyJson


def test_the_last_transactions_are_kept_and_all_are_counted() -> None:
    monitor = Monitor()
    for txid in range(1, RECENT + 11):
        monitor.committed([progress(txid)])
    assert [one.txid for one in monitor.recent()] == list(range(11, RECENT + 11))
    assert monitor.snapshot().txids == RECENT + 10
    assert monitor.snapshot().tuples == 15 * (RECENT + 10)


def test_listeners_hear_every_transaction_in_order() -> None:
    heard: list[int] = []
    monitor = Monitor([lambda one: heard.append(one.txid), lambda one: heard.append(-one.txid)])
    monitor.committed([progress(1), progress(2)])
    assert heard == [1, -1, 2, -2]


def test_bytes_are_held_until_committed_or_discarded() -> None:
    monitor = Monitor()
    for txid in (1, 2, 3):
        monitor.processed(txid, 100 * txid)
    assert monitor.bytes_held == 600
    monitor.committed([progress(1)])
    assert monitor.bytes_held == 500
    monitor.discarded([TransactionAttempt(3, 1), TransactionAttempt(9, 1)])
    assert monitor.bytes_held == 200


def test_a_snapshot_shows_what_the_coordinator_sees() -> None:
    monitor = Monitor()
    assert monitor.snapshot().in_flight == ()
    state = initial(Config(2))
    for event in (Opened(5, ()), Wake(), Planned(5, 50), Planned(6, 60), Processed(6, 60)):
        state, _ = step(state, event)
    monitor.watch(state)
    monitor.replayed()
    monitor.failed(TransactionAttempt(6, 55), "why")
    snapshot = monitor.snapshot()
    assert snapshot.committed == 4
    assert snapshot.in_flight == ((5, 50, "processing"), (6, 60, "processed"))
    assert (snapshot.replays, snapshot.last_failure) == (1, "6:55: why")


@pytest.mark.parametrize("cause", ["state counts: permission denied"])
def test_blocked_until_it_is_not(cause: str) -> None:
    monitor = Monitor()
    assert not monitor.is_blocked
    monitor.blocked(cause)
    assert monitor.is_blocked
    assert monitor.snapshot().blocked == cause
    monitor.blocked(None)
    assert not monitor.is_blocked
