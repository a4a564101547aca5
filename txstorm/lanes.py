"""Lanes: what runs the work of a process, what the work waits by, and its clocks, as one value that a run is given.

A run is given `THREADS`: every lane is a daemon thread. The test driver is given `Inline`: the caller's thread does all
work at once. A simulation gives a scheduler of its own. `Threads` replaces `concurrent.futures.ThreadPoolExecutor`,
whose threads the interpreter joins at exit, so that hanging user code or a hanging server would keep the process alive.
The executor is used only where every call returns by itself: Spark, Kafka brokers. This is one module, as each kind of
lanes implements the whole port.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Protocol, TypeVar

from typing_extensions import override

from txstorm.errors import FencedError

A = TypeVar("A")
_BOOT: int | None = getattr(time, "CLOCK_BOOTTIME", None)
"""The clock since boot, which only Linux has; elsewhere it is the monotonic clock."""
Call = Callable[[], None]


def utc_time(micros: int) -> datetime:
    """Return a time in UTC microseconds since 1970 as an aware datetime."""
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)


def complete(answer: Future[A], call: Callable[[], A]) -> None:
    """Call `call`, and complete `answer` with its result or with any exception it raises."""
    try:
        result = call()
    except BaseException as error:  # noqa: BLE001 - raised on the lane that waits for the answer
        answer.set_exception(error)
    else:
        answer.set_result(result)


class Lane(Protocol):
    """Port: runs queued calls one after another; it can be abandoned in the middle of a call. Thread-safe."""

    def queue(self, call: Call) -> None:
        """Queue `call`, which must not raise an exception; its result is ignored."""

    def submit(self, call: Callable[[], A], answer: Future[A] | None = None) -> Future[A]:
        """Queue `call`; return the future of its result, which is `answer` if given."""
        completed: Future[A] = Future() if answer is None else answer
        self.queue(lambda: complete(completed, call))
        return completed

    def end(self) -> None:
        """End the lane after the calls already queued; does not wait for it."""

    def leave(self) -> list[Call]:
        """Abandon the lane; return the calls it has not started. It ends after the current one, if that returns."""
        ...

    def join(self, timeout: float | None = None) -> bool:
        """Wait at most `timeout` seconds (None: forever) for the lane to end; return whether it has."""
        ...


class Task(Protocol):
    """Port: one call on a lane of its own; `threading.Thread` is one."""

    def join(self, timeout: float | None = None) -> None:
        """Wait at most `timeout` seconds (None: forever) for the call to end."""

    def is_alive(self) -> bool:
        """Return whether the call has not ended."""
        ...


class Flag(Protocol):
    """Port: a flag for which lanes wait; `threading.Event` is one."""

    def set(self) -> None:
        """Set the flag, which wakes all lanes that wait for it."""

    def is_set(self) -> bool:
        """Return whether the flag is set."""
        ...

    def wait(self, timeout: float | None = None) -> bool:
        """Wait at most `timeout` seconds (None: forever) until the flag is set; return whether it is."""
        ...


class Calls(Protocol):
    """Port: a queue of calls for one reading lane; `queue.SimpleQueue` is one."""

    def put(self, item: Call, /) -> None:
        """Add a call; never blocks."""

    def get(self, block: bool = True, timeout: float | None = None) -> Call:
        """Remove and return the first call, after waiting at most `timeout` seconds (None: forever) for one.

        Raises:
            queue.Empty: there is none in time.
        """
        ...


class Lanes(Protocol):
    """Port: everything by which work runs concurrently, waits, and knows the time."""

    longest: float = 0.5
    """Seconds after which a driver with work in flight looks for requests and timeouts; infinite in simulations."""

    def now(self) -> int:
        """Return the wall-clock time in UTC microseconds since 1970, for the timestamps of transactions."""
        ...

    def seconds(self) -> float:
        """Return the wall-clock time in seconds since 1970."""
        return self.now() / 1_000_000

    def monotonic(self) -> float:
        """Return seconds of a clock that never runs backwards, for timers, timeouts and durations."""
        ...

    def boot(self) -> float:
        """Return seconds of a clock that never runs backwards, and that goes on while the machine is suspended."""
        return self.monotonic()

    def processor(self) -> float:
        """Return the seconds of processor time that the current thread has used."""
        return time.thread_time()

    def sleep(self, seconds: float) -> None:
        """Let `seconds` pass on the calling lane."""

    def lane(self, name: str) -> Lane:
        """Create a lane."""
        ...

    def start(self, call: Call, name: str, *, daemon: bool = True) -> Task:
        """Make one call on a lane of its own; the interpreter waits for it at exit unless it is a `daemon`."""
        ...

    def call(self, work: Callable[[], A], name: str) -> Future[A]:
        """Do `work` on a lane of its own; return a future of its result."""
        answer: Future[A] = Future()
        self.start(partial(complete, answer, work), name)
        return answer

    def current(self) -> object:
        """Return what identifies the calling lane."""
        return threading.get_ident()

    def event(self) -> Flag:
        """Create a flag that is not set."""
        ...

    def calls(self) -> Calls:
        """Create an empty queue of calls."""
        ...

    def lock(self) -> AbstractContextManager[Any]:
        """Create a lock between lanes, which the lane that holds it may acquire again."""
        return threading.RLock()

    def result(self, future: Future[A], timeout: float | None = None) -> A:
        """Wait at most `timeout` seconds (None: forever) for `future`; return its result, or raise its exception.

        Raises:
            TimeoutError: it is not completed in time.
        """
        return future.result(timeout)

    def together(self, calls: Sequence[Callable[[], A]]) -> list[A]:
        """Make independent `calls`, concurrently if that helps; return their results, in order, once all have ended.

        Raises:
            FencedError: any of the calls raised it; otherwise, the error of the first failed call is raised.
        """
        answers: list[Future[A]] = [Future() for _ in calls]
        self._complete_all(list(zip(calls, answers, strict=True)))
        failures = [failure for answer in answers if (failure := answer.exception()) is not None]
        for failure in sorted(failures, key=lambda one: not isinstance(one, FencedError)):
            raise failure
        return [answer.result() for answer in answers]

    def _complete_all(self, pairs: Sequence[tuple[Callable[[], A], Future[A]]]) -> None:
        for call, answer in pairs:
            complete(answer, call)


def start_thread(
    call: Callable[..., object], *args: Any, name: str | None = None, daemon: bool = True
) -> threading.Thread:
    """Call `call` with `args` on a new thread; the interpreter joins it at exit unless it is a daemon thread."""
    thread = threading.Thread(target=call, args=args, name=name, daemon=daemon)
    thread.start()
    return thread


class Worker(Lane):
    """A daemon thread as a lane."""

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[Call | None] = SimpleQueue()
        self._thread = start_thread(self._body, name=name)

    @override
    def queue(self, call: Call) -> None:
        self._calls.put(call)

    @override
    def end(self) -> None:
        self._calls.put(None)

    @override
    def leave(self) -> list[Call]:
        calls: list[Call] = []
        while True:
            try:
                calls += filter(None, [self._calls.get_nowait()])
            except Empty:
                self.end()
                return calls

    @override
    def join(self, timeout: float | None = None) -> bool:
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _body(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
            del call  # release it before waiting: it may refer to the rows of a group


class Threads(Lanes):
    """The lanes of a run: daemon threads, and the clocks of the machine."""

    def __init__(self) -> None:
        self._idle: deque[Worker] = deque()
        """Idle threads kept for `together`, since starting a thread takes a millisecond while others are busy."""
        os.register_at_fork(after_in_child=self._idle.clear)  # threads do not survive a fork

    @override
    def now(self) -> int:
        return time.time_ns() // 1000

    monotonic = staticmethod(time.monotonic)

    @override
    def boot(self) -> float:
        return time.monotonic() if _BOOT is None else time.clock_gettime(_BOOT)

    @override
    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    @override
    def lane(self, name: str) -> Lane:
        return Worker(name)

    @override
    def start(self, call: Call, name: str, *, daemon: bool = True) -> Task:
        return start_thread(call, name=name, daemon=daemon)

    @override
    def event(self) -> Flag:
        return threading.Event()

    @override
    def calls(self) -> Calls:
        return SimpleQueue()

    @override
    def _complete_all(self, pairs: Sequence[tuple[Callable[[], A], Future[A]]]) -> None:
        """Make the first call on this thread, each of the others on a thread that is idle, or new."""
        for call, answer in pairs[1:]:
            self._delegate(call, answer)
        super()._complete_all(pairs[:1])
        for _, answer in pairs:
            answer.exception()  # waits for it

    def _delegate(self, call: Callable[[], A], answer: Future[A]) -> None:
        try:
            worker = self._idle.pop()
        except IndexError:
            worker = Worker("txstorm-table")

        def work() -> None:
            complete(answer, call)
            self._idle.append(worker)

        worker.queue(work)


THREADS = Threads()


class Inline(Lanes):
    """The lanes of the test driver: the caller's thread does all work at once, so there is nothing to wait for.

    Args:
        now, monotonic: the clocks, which only a test moves; see `Lanes`.
    """

    def __init__(self, now: Callable[[], int], monotonic: Callable[[], float]) -> None:
        self._now, self._monotonic = now, monotonic

    @override
    def now(self) -> int:
        return self._now()

    @override
    def monotonic(self) -> float:
        return self._monotonic()

    @override
    def sleep(self, seconds: float) -> None:
        pass

    @override
    def lane(self, name: str) -> Lane:
        return _InlineLane()

    @override
    def start(self, call: Call, name: str, *, daemon: bool = True) -> Task:
        call()
        return _Ended()

    @override
    def event(self) -> Flag:
        return _InlineFlag()

    @override
    def calls(self) -> Calls:
        return _InlineCalls()

    @override
    def result(self, future: Future[A], timeout: float | None = None) -> A:
        return future.result(0)


class _Ended(Task):
    """A call that has ended."""

    def join(self, timeout: float | None = None) -> None:
        pass

    def is_alive(self) -> bool:
        return False


class _InlineFlag(Flag):
    """A flag that cannot be set during a wait, as nothing else runs."""

    def __init__(self) -> None:
        self._is_set = False

    def set(self) -> None:
        self._is_set = True

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, timeout: float | None = None) -> bool:
        return self._is_set


class _InlineCalls(SimpleQueue[Call]):
    """A queue from which only calls that are there already can be taken."""

    def get(self, block: bool = True, timeout: float | None = None) -> Call:
        return super().get(block=False)


class _InlineLane(Lane):
    """A lane on the caller's thread; calls that are queued during another call follow it."""

    def __init__(self) -> None:
        self._waiting: deque[Call] = deque()
        self._busy = False

    def queue(self, call: Call) -> None:
        self._waiting.append(call)
        if self._busy:
            return
        self._busy = True
        try:
            while self._waiting:
                self._waiting.popleft()()
        finally:
            self._busy = False

    def end(self) -> None:
        pass

    def leave(self) -> list[Call]:
        calls = list(self._waiting)
        self._waiting.clear()
        return calls

    def join(self, timeout: float | None = None) -> bool:
        return True
