"""Questions to brokers that may take long, asked on a thread of their own: the driver has other things to do."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, Final

PENDING: Final = object()
"""There is no answer yet."""

GOODBYE = 1.0
"""Seconds that `Aside.close` waits for an answer that nobody wants any more."""


class Aside:
    """Works on one question at a time; used from one thread, which `work` shares nothing with while it waits.

    Args:
        patience: seconds that one who asks is kept waiting, at most.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="txstorm-kafka")
        self._open: tuple[Any, Future[Any]] | None = None

    @property
    def busy(self) -> bool:
        """Whether work is under way, or has an answer that nobody has taken."""
        return self._open is not None

    def ask(self, question: Any, work: Callable[[], Any]) -> Any:
        """What `work` gives or raises; `PENDING` when that takes longer: then ask again.

        The answer to another question, which nobody asks any more, is waited for and thrown away.
        """
        if self._open is not None and self._open[0] != question and self._open[1].done():
            self._open = None
        if self._open is None:
            self._open = (question, self._thread.submit(work))
            wait([self._open[1]], timeout=self._patience)
        asked, answer = self._open
        if asked != question or not answer.done():
            return PENDING
        self._open = None
        return answer.result()

    def wait(self, work: Callable[[], Any]) -> Any:
        """What `work` gives or raises, however long that takes."""
        return self._thread.submit(work).result()

    def close(self, last: Callable[[], None]) -> None:
        """Have `last` done after all else, and end the thread; waits for both, but not long."""
        done = self._thread.submit(last)
        self._thread.shutdown(wait=False)
        wait([done], timeout=GOODBYE)
