"""Pool of Kafka readers, reused from one batch to the next: opening a reader costs more than a small batch."""

from __future__ import annotations

import atexit
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from txstorm.clients.kafka.cluster import Cluster, Partition, Range
from txstorm.clients.kafka.reader import RangeReader

IDLE = 16
"""Maximum number of idle readers; each has its own threads and buffers."""

LONGEST_IDLE = 60.0
"""Seconds after which an idle reader is closed: one that was not read to the end of a partition goes on fetching."""


@dataclass
class _Idle:
    key: str
    reader: RangeReader
    since: float


class Readers:
    """Pool of readers, each lent to one batch at a time; at most `IDLE` are kept idle, for at most a minute."""

    def __init__(
        self,
        make: Callable[[Mapping[str, Any], str], RangeReader] = RangeReader,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make = make
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._idle: list[_Idle] = []
        self._timer: threading.Timer | None = None

    @contextmanager
    def lend(
        self,
        settings: Mapping[str, Any],
        isolation: str,
        ranges: Mapping[Partition, Range],
        ids: Mapping[str, str],
    ) -> Iterator[RangeReader]:
        """Lend a reader with these settings, preferably one positioned where `ranges` begin.

        A reader that failed is closed, and so are idle ones with the same settings: if a leader restarts and then a
        topic is recreated, for example, librdkafka takes the new topic's metadata for outdated and never reads it.
        """
        key = _key(settings, isolation)
        reader = self._take(key, ranges, ids) or self._make(settings, isolation)
        try:
            yield reader
        except BaseException:
            with self._lock:
                dropped = [idle.reader for idle in self._idle if idle.key == key]
                self._idle = [idle for idle in self._idle if idle.key != key]
            for closing in (reader, *dropped):
                closing.close()
            raise
        reader.rest()
        self._keep(key, reader)

    def _take(self, key: str, ranges: Mapping[Partition, Range], ids: Mapping[str, str]) -> RangeReader | None:
        with self._lock:
            fitting = [idle for idle in self._idle if idle.key == key]
            if not fitting:
                return None
            best = max(fitting, key=lambda idle: idle.reader.fits(ranges, ids))
            self._idle.remove(best)
            return best.reader

    def _keep(self, key: str, reader: RangeReader) -> None:
        with self._lock:
            self._idle.append(_Idle(key, reader, self._monotonic()))
            self._close_later()
        self._close_expired()

    def _close_expired(self) -> None:
        """Close readers that are too many, or have been idle for too long."""
        now = self._monotonic()
        with self._lock:
            expired = self._idle[:-IDLE]
            expired += [idle for idle in self._idle[-IDLE:] if now - idle.since >= LONGEST_IDLE]
            self._idle = [idle for idle in self._idle if idle not in expired]
        for idle in expired:
            idle.reader.close()

    def _close_later(self) -> None:
        """Have idle readers closed even if no reader is returned any more; call with the lock held."""
        if self._idle and (self._timer is None or not self._timer.is_alive()):  # threads do not survive a fork
            due = self._idle[0].since + LONGEST_IDLE - self._monotonic()
            self._timer = threading.Timer(max(due, 0.0), self._expire)
            self._timer.daemon = True
            self._timer.start()

    def _expire(self) -> None:
        self._close_expired()
        with self._lock:
            self._timer = None
            self._close_later()

    def close(self) -> None:
        """Close all idle readers; a lent one returns to the pool and is closed later."""
        with self._lock:
            closing, self._idle = self._idle, []
        for idle in closing:
            idle.reader.close()


READERS = Readers()
"""The pool of this process."""

atexit.register(READERS.close)

_CLUSTERS: dict[str, Cluster] = {}
_CLUSTERS_KEPT = 4


def cluster_of(settings: Mapping[str, Any], isolation: str) -> Cluster:
    """Return the process-wide client with these settings; it is thread-safe."""
    key = _key(settings, isolation)
    if key not in _CLUSTERS:
        while len(_CLUSTERS) >= _CLUSTERS_KEPT:
            _CLUSTERS.pop(next(iter(_CLUSTERS)), None)
        _CLUSTERS[key] = Cluster(settings, isolation)
    return _CLUSTERS[key]


def _key(settings: Mapping[str, Any], isolation: str) -> str:
    return json.dumps([isolation, sorted(settings.items())], default=str)
