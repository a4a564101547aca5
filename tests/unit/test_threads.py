"""Threads and workers: names, results, exceptions, abandoned workers, and interpreter exit."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import Future

import pytest

from txstorm.threads import Worker, on_thread, start_thread


def test_a_call_on_a_thread_completes_its_future():
    assert on_thread(lambda: threading.current_thread().name, "txstorm-local-7").result(10) == "txstorm-local-7"


@pytest.mark.parametrize("error", [ValueError("boom"), SystemExit(3)])
def test_every_exception_reaches_the_caller(error):
    def fail():
        raise error

    assert on_thread(fail, "failing").exception(10) is error
    worker = Worker("failing")
    assert worker.submit(fail).exception(10) is error
    assert worker.submit(lambda: "still at work").result(10) == "still at work"
    worker.end()
    assert worker.join(10)


def test_a_worker_runs_calls_in_order_and_completes_their_futures():
    worker, given, calls = Worker("orderly"), Future(), []
    for number in range(5):
        worker.submit(lambda number=number: calls.append(number))
    assert worker.submit(lambda: list(calls), given) is given
    assert given.result(10) == [0, 1, 2, 3, 4]
    worker.end()
    assert worker.join(10)


def test_another_worker_takes_over_the_calls_of_an_abandoned_one():
    hangs, started = threading.Event(), threading.Event()
    first, second = Worker("first"), Worker("second")
    stuck = first.submit(lambda: started.set() or hangs.wait(10))
    waiting = first.submit(lambda: threading.current_thread().name)
    assert started.wait(10)
    second.take_over(first.leave())
    assert waiting.result(10) == "second"
    assert not first.join(0)
    hangs.set()
    assert stuck.result(10) is True
    assert first.join(10)
    second.end()


def test_a_thread_is_named_after_its_call_by_default():
    def work():
        names.append(threading.current_thread().name)

    names: list[str] = []
    start_thread(work).join(10)
    assert names[0].endswith("(work)")


@pytest.mark.parametrize(("options", "printed"), [("", ""), (", daemon=False", "done")])
def test_only_non_daemon_threads_delay_the_exit(options, printed):
    program = f"""
import time
from txstorm.threads import Worker, on_thread, start_thread
def work():
    time.sleep(1)
    print("done", end="")
start_thread(work{options})
on_thread(lambda: time.sleep(60), "hangs")
Worker("hangs").submit(lambda: time.sleep(60))
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=30)
    assert ended.stdout == printed
