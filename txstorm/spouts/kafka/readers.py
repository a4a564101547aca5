"""Readers of Kafka ranges, kept by a process from one batch to the next: opening one costs more than a small batch."""

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
"""Readers that wait for the next batch, at most; each has threads and buffers of its own."""

LONGEST_IDLE = 60.0


@dataclass
class _Idle:
    key: str
    reader: RangeReader
    since: float


class Readers:
    """Lends readers, each to one batch at a time; at most `IDLE` of them wait, none for longer than a minute.

    Args:
        make: makes a reader from settings and isolation level.
        monotonic: seconds.
    """

    def __init__(
        self,
        make: Callable[[Mapping[str, Any], str], RangeReader] = RangeReader,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make = make
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._idle: list[_Idle] = []

    @contextmanager
    def lend(
        self,
        settings: Mapping[str, Any],
        isolation: str,
        ranges: Mapping[Partition, Range],
        ids: Mapping[str, str],
    ) -> Iterator[RangeReader]:
        """A reader with these settings, if possible one that stands where `ranges` begin.

        One that failed is not lent again, nor are those that waited meanwhile: after a restart of its leader and then
        a topic made anew, for one, librdkafka takes what is said of the new topic for old, and never reads it.
        """
        key = _key(settings, isolation)
        reader = self._taken(key, ranges, ids) or self._make(settings, isolation)
        try:
            yield reader
        except BaseException:
            self._drop(key, reader)
            raise
        reader.rest()
        self._keep(key, reader)

    def _drop(self, key: str, reader: RangeReader) -> None:
        with self._lock:
            dropped = [one.reader for one in self._idle if one.key == key]
            self._idle = [one for one in self._idle if one.key != key]
        for one in (reader, *dropped):
            one.close()

    def _taken(self, key: str, ranges: Mapping[Partition, Range], ids: Mapping[str, str]) -> RangeReader | None:
        with self._lock:
            fitting = [one for one in self._idle if one.key == key]
            if not fitting:
                return None
            best = max(fitting, key=lambda one: one.reader.fits(ranges, ids))
            self._idle.remove(best)
            return best.reader

    def _keep(self, key: str, reader: RangeReader) -> None:
        now = self._monotonic()
        with self._lock:
            self._idle.append(_Idle(key, reader, now))
            old = self._idle[:-IDLE]
            old += [one for one in self._idle[-IDLE:] if now - one.since > LONGEST_IDLE]
            self._idle = [one for one in self._idle if one not in old]
        for one in old:
            one.reader.close()

    def close(self) -> None:
        """Close all that wait; those that are lent wait, and are closed, later."""
        with self._lock:
            idle, self._idle = self._idle, []
        for one in idle:
            one.reader.close()


READERS = Readers()
"""Those of this process."""

atexit.register(READERS.close)

_CLUSTERS: dict[str, Cluster] = {}
_CLUSTERS_KEPT = 4


def cluster_of(settings: Mapping[str, Any], isolation: str) -> Cluster:
    """The one of this process with these settings; may be asked from several threads."""
    key = _key(settings, isolation)
    if key not in _CLUSTERS:
        while len(_CLUSTERS) >= _CLUSTERS_KEPT:
            _CLUSTERS.pop(next(iter(_CLUSTERS)), None)
        _CLUSTERS[key] = Cluster(settings, isolation)
    return _CLUSTERS[key]


def _key(settings: Mapping[str, Any], isolation: str) -> str:
    return json.dumps([isolation, sorted(settings.items())], default=str)
