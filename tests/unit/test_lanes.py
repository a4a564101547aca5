"""Lanes: names, results, exceptions, abandoned workers, and interpreter exit; the lanes of the test driver."""

import subprocess
import sys
import threading
from concurrent.futures import Future
from queue import Empty

import pytest

from txstorm.errors import FencedError
from txstorm.lanes import THREADS, Inline, Worker, start_thread


def test_a_named_thread_completes_futures_and_another_worker_takes_over_from_an_abandoned_one():
    names: list[str] = []

    def work():
        names.append(threading.current_thread().name)
        return names[-1]

    assert THREADS.call(work, "txstorm-local-7").result(10) == "txstorm-local-7"
    start_thread(work).join(10)
    assert names[1].endswith("(work)")  # after its call by default
    hangs, started = threading.Event(), threading.Event()
    first, second = Worker("first"), Worker("second")
    stuck = first.submit(lambda: started.set() or hangs.wait(10))
    waiting = first.submit(lambda: threading.current_thread().name)
    assert started.wait(10)
    for call in first.leave():
        second.queue(call)
    assert waiting.result(10) == "second"
    assert not first.join(0)
    hangs.set()
    assert stuck.result(10) is True
    assert first.join(10)
    second.end()


@pytest.mark.parametrize("error", [ValueError("boom"), SystemExit(3)])
def test_every_exception_reaches_the_caller_and_a_worker_runs_calls_in_order(error):
    def fail():
        raise error

    assert THREADS.call(fail, "failing").exception(10) is error
    worker, given, calls = Worker("orderly"), Future(), []
    assert worker.submit(fail).exception(10) is error
    for number in range(5):
        worker.submit(lambda number=number: calls.append(number))
    assert worker.submit(lambda: list(calls), given) is given
    assert given.result(10) == [0, 1, 2, 3, 4]
    worker.end()
    assert worker.join(10)


@pytest.mark.integration
@pytest.mark.parametrize(("options", "printed"), [("", ""), (", daemon=False", "done")])
def test_only_non_daemon_threads_delay_the_exit(options, printed):
    program = f"""
import time
from txstorm.lanes import THREADS, Worker, start_thread
def work():
    time.sleep(1)
    print("done", end="")
start_thread(work{options})
THREADS.call(lambda: time.sleep(60), "hangs")
Worker("hangs").submit(lambda: time.sleep(60))
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=30)
    assert ended.stdout == printed


@pytest.mark.parametrize("lanes", [THREADS, Inline(lambda: 0, lambda: 0.0)])
def test_independent_calls_all_end_before_a_failure_is_raised_and_fencing_comes_first(lanes):
    made: list[str] = []

    def ends(what, error=None):
        made.append(what)
        if error is not None:
            raise error
        return what

    assert lanes.together([lambda: ends("a"), lambda: ends("b")]) == ["a", "b"]
    calls = [lambda: ends("c", OSError("disk")), lambda: ends("d", FencedError("taken over")), lambda: ends("e")]
    with pytest.raises(FencedError):
        lanes.together(calls)
    with pytest.raises(OSError, match="disk"):
        lanes.together([calls[2], calls[0]])
    assert sorted(made) == ["a", "b", "c", "c", "d", "e", "e"]


def test_inline_lanes_leave_nothing_to_wait_for():
    lanes, made = Inline(lambda: 7, lambda: 1.5), []
    lane = lanes.lane("commit")

    def first():
        lane.queue(lambda: made.append("then"))
        made.append("first")

    lane.queue(first)
    assert made == ["first", "then"]
    assert lanes.call(lambda: threading.current_thread(), "any").result(0) is threading.current_thread()
    calls, flag = lanes.calls(), lanes.event()
    with pytest.raises(Empty):
        calls.get(timeout=100)
    assert not flag.wait(100)
    flag.set()
    assert flag.wait(100)
    lanes.sleep(100)
    with pytest.raises(TimeoutError):
        lanes.result(Future(), 100)
    assert lane.join()
    assert (lanes.now(), lanes.monotonic()) == (7, 1.5)
