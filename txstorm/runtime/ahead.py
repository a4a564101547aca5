"""Committers execute ahead of their turn: while nothing is due to be committed, on the thread that commits."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any

from txstorm.api.attempt import TransactionAttempt
from txstorm.runtime.commits import Committer, Ready


class Ahead:
    """One processed txid after the other, the lowest first; told and asked by the driver thread only.

    A txid that waits for the processing of an earlier one has its committers' `execute` behind it when its turn
    comes. One at a time, so that a commit that falls due waits for one txid at most; and on the commit thread, so that
    what a committer opens in `prepare` is used on the thread it was opened on.

    Args:
        committer: whose committers execute.
        submit: has a call made on the commit thread.
        put: has a call made on the driver thread.
        failed: told there of an attempt whose `execute` raised, and what.
    """

    def __init__(
        self,
        committer: Committer,
        submit: Callable[..., Future[Any]],
        put: Callable[[Callable[[], None]], None],
        failed: Callable[[TransactionAttempt, BaseException], None],
    ) -> None:
        self._committer = committer
        self._submit = submit
        self._put = put
        self._failed = failed
        self._busy = False
        self._wanted: set[TransactionAttempt] = set()

    def go(self, ready: Iterable[Ready]) -> None:
        """Execute the next of `ready`, unless one is executing; to be called when no commit is due."""
        if self._busy or not self._committer.has_bolts:
            return
        waiting = [one for one in ready if one.attempt not in self._wanted]
        if waiting:
            first = min(waiting, key=lambda one: one.attempt)
            self._wanted.add(first.attempt)
            self._busy = True
            done = self._submit(self._execute, first)
            done.add_done_callback(lambda done: self._put(lambda: self._executed(first, done)))

    def forget(self, dead: Iterable[TransactionAttempt]) -> None:
        """These attempts were discarded, or are committed."""
        gone = set(dead)
        self._wanted -= gone
        self._committer.forget(gone)

    def _execute(self, ready: Ready) -> None:
        """On the commit thread."""
        if ready.attempt in self._wanted:
            self._committer.execute(ready)

    def _executed(self, ready: Ready, done: Future[Any]) -> None:
        self._busy = False
        if ready.attempt not in self._wanted:
            self._committer.forget([ready.attempt])  # it was discarded meanwhile
        elif (error := done.exception()) is not None:
            self._failed(ready.attempt, error)
