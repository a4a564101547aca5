"""Progress of a run: the latest transactions, totals, and transactions in flight."""

import json
import threading
import time

from txstorm.api.attempt import TransactionAttempt
from txstorm.coordinator.events import Opened, Planned, Processed, Wake
from txstorm.coordinator.machine import Config, initial, step
from txstorm.monitor.progress import RECENT, Monitor, TransactionProgress


def progress(txid: int, tuples: int = 5) -> TransactionProgress:
    stamp = 1_700_000_000_000_000 + txid
    counts = {"lines": tuples, "split": 2 * tuples}
    return TransactionProgress(txid, txid + 100, stamp, "lines", counts, 2, 1, 12.3456, {"finish": 1.23456}, ("seen",))


def test_a_snapshot_shows_what_the_coordinator_sees() -> None:
    one = progress(3)
    assert one.numInputRows == 5
    assert one.durationMs == {"process": 12.346, "finish": 1.235}
    assert one.timestamp == "2023-11-14T22:13:20.000003+00:00"
    document = json.loads(one.json)
    assert document["tuples"] == {"lines": 5, "split": 10}
    assert document["reported"] == ["seen"]
    assert "\n" in one.prettyJson
    monitor = Monitor()
    for txid in range(1, RECENT + 11):
        monitor.committed([progress(txid)])
    assert [one.txid for one in monitor.recent()] == list(range(11, RECENT + 11))
    assert monitor.snapshot().txids == RECENT + 10
    assert monitor.snapshot().tuples == 15 * (RECENT + 10)
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
    assert (snapshot.replays, snapshot.last_failure, snapshot.blocked) == (1, "6:55: why", None)
    for txid, shown in ((5, "6:55: why"), (6, None)):  # until what failed is committed
        monitor.committed([progress(txid)])
        assert monitor.snapshot().last_failure == shown
    for txid, attempt, cause, shown in (
        (7, 70, "why", "7:70: why"),
        (7, 71, "why", "7:71, 2 times: why"),
        (7, 72, "another", "7:72: another"),
        (8, 80, "another", "8:80, 2 times: another"),
    ):
        monitor.failed(TransactionAttempt(txid, attempt), cause)
        assert monitor.snapshot().last_failure == shown
    monitor.known_failures({9: (40, "before")})
    assert monitor.snapshot().last_failure == "txid 9, 40 times: before"
    for cause in ("state counts: permission denied", None):
        monitor.blocked(cause)
        assert monitor.snapshot().blocked == cause


def test_the_rate_is_that_of_the_last_ten_seconds() -> None:
    """By a manual clock: 1,000 rows a second from 100 s after the start on, whoever looks, and when; then nothing."""
    now = [50.0]
    monitor = Monitor(monotonic=lambda: now[0])
    now[0] = 1000.0  # on standby, and while Spark starts
    assert (monitor.snapshot().seconds, monitor.snapshot().rate, monitor.snapshot().average) == (0.0, 0.0, 0.0)
    rates = {}
    for second in range(161):
        now[0] = 1000.0 + second
        if second == 0:
            monitor.watch(initial(Config(2)))
        if 100 < second <= 140:
            monitor.committed([progress(second, 1000)])
        if second in (2, 101, 105, 110, 140, 145, 149, 150, 160):
            rates[second] = (round(monitor.snapshot().rate), round(monitor.snapshot().average))
    expected = {2: (0, 0), 101: (100, 10), 105: (500, 48), 110: (1000, 91), 140: (1000, 286), 145: (500, 276)}
    assert rates == {**expected, 149: (100, 268), 150: (0, 267), 160: (0, 250)}
    monitor.close()
    now[0] += 3600  # what has ended does not become slower
    assert (monitor.snapshot().seconds, monitor.snapshot().average) == (160.0, 250.0)
    early = Monitor(monotonic=lambda: now[0])
    early.watch(initial(Config(2)))
    now[0] += 2
    early.committed([progress(1, 300)])
    assert early.snapshot().rate == early.snapshot().average == 150.0


def test_a_hanging_listener_delays_nothing_and_dropped_records_are_counted(monkeypatch, caplog) -> None:
    monkeypatch.setattr("txstorm.monitor.progress.QUEUE", 3)
    monkeypatch.setattr("txstorm.monitor.progress.CLOSE_SECONDS", 0.1)
    hangs, goes_on = threading.Event(), threading.Event()
    heard: list[int] = []

    def listener(one: TransactionProgress) -> None:
        hangs.set()
        goes_on.wait(60)
        heard.append(one.txid)

    monitor = Monitor([listener])
    monitor.committed([progress(1)])
    assert hangs.wait(60)
    monitor.committed([progress(txid) for txid in range(2, 10)])  # 3 of them are queued, 5 are dropped
    assert monitor.snapshot().undelivered == 5
    assert monitor.snapshot().txids == 9
    assert "txid 5: listeners are too slow: 3 progress records wait for them" in caplog.text
    monitor.close()
    assert monitor.snapshot().undelivered == 8
    assert "not delivered to listeners" in repr(monitor.snapshot())
    assert "listeners were too slow: they did not receive 8 progress records" in caplog.text
    goes_on.set()


def test_all_listeners_get_all_records_in_order_also_slow_ones_and_those_that_raise(caplog) -> None:
    heard: list[int] = []

    def slow(one: TransactionProgress) -> None:
        time.sleep(0.001)
        heard.append(one.txid)
        raise KeyboardInterrupt

    monitor = Monitor([slow, lambda one: heard.append(-one.txid)])
    for txid in range(1, 101):
        monitor.committed([progress(txid)])
    monitor.close()
    assert heard == [signed for txid in range(1, 101) for signed in (txid, -txid)]
    assert "txid 2: a listener raised" in caplog.text
    assert monitor.snapshot().undelivered == 0
    monitor.close()
