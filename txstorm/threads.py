"""Threads that txstorm starts itself: one call on a daemon thread, or a worker with a queue of calls.

This replaces `concurrent.futures.ThreadPoolExecutor`, whose threads the interpreter joins at exit, so that hanging
user code or a hanging server would keep the process alive. The executor is used only where every call returns by
itself: Spark, Kafka brokers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

A = TypeVar("A")


def start_thread(
    call: Callable[..., object], *args: Any, name: str | None = None, daemon: bool = True
) -> threading.Thread:
    """Call `call` with `args` on a new thread; the interpreter joins it at exit unless it is a daemon thread."""
    thread = threading.Thread(target=call, args=args, name=name, daemon=daemon)
    thread.start()
    return thread


def complete(answer: Future[A], call: Callable[[], A]) -> None:
    """Call `call`, and complete `answer` with its result or with any exception it raises."""
    try:
        result = call()
    except BaseException as error:  # noqa: BLE001 - raised on the thread that waits for the answer
        answer.set_exception(error)
    else:
        answer.set_result(result)


def on_thread(call: Callable[[], A], name: str) -> Future[A]:
    """Run `call` on a new daemon thread; return a future of its result."""
    answer: Future[A] = Future()
    start_thread(complete, answer, call, name=name)
    return answer


class Worker:
    """A daemon thread that runs queued calls one after another; it can be abandoned in the middle of a call."""

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = start_thread(self._body, name=name)

    def submit(self, call: Callable[[], A], answer: Future[A] | None = None) -> Future[A]:
        """Queue `call`; return the future of its result, which is `answer` if given."""
        completed: Future[A] = Future() if answer is None else answer
        self.queue(lambda: complete(completed, call))
        return completed

    def queue(self, call: Callable[[], None]) -> None:
        """Queue `call`, which must not raise an exception; its result is ignored."""
        self._calls.put(call)

    def end(self) -> None:
        """End the thread after the calls already queued; does not wait for it."""
        self._calls.put(None)

    def leave(self) -> list[Callable[[], None] | None]:
        """Abandon the thread; return the calls it has not started. It ends after the current one, if that returns."""
        calls: list[Callable[[], None] | None] = []
        while True:
            try:
                calls.append(self._calls.get_nowait())
            except Empty:
                self.end()
                return calls

    def take_over(self, calls: Iterable[Callable[[], None] | None]) -> None:
        """Queue the calls that an abandoned worker had not started."""
        for call in calls:
            self._calls.put(call)

    def join(self, timeout: float | None = None) -> bool:
        """Wait at most `timeout` seconds (None: forever) for the thread to end; return whether it has."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _body(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
            del call  # release it before waiting: it may refer to the rows of a group
