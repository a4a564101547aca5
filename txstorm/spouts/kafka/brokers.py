"""The coordinator's view of the Kafka brokers: topics, their partitions, end offsets and sizes of records.

Requests that may take long run on a separate thread, so that they do not block the driver. Offsets are requested from
the leaders of the partitions, with a short timeout for each leader.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from datetime import datetime, timedelta
from typing import Any, Final

from txstorm.api.context import EPOCH
from txstorm.clients.kafka.cluster import (
    EARLIEST,
    LATEST,
    Cluster,
    Partition,
    Range,
    Topic,
    Unavailable,
    Unreadable,
)
from txstorm.clients.kafka.reader import RangeReader
from txstorm.spouts.kafka.options import KafkaSource

PENDING: Final = object()
"""Returned instead of a result that is not available yet."""

GOODBYE = 1.0
"""Seconds that `Aside.close` waits for an answer that is no longer needed."""


class Aside:
    """Background thread for one request at a time; call from one thread, which must share no state with `work`."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="txstorm-kafka")
        self._open: tuple[Any, Future[Any]] | None = None

    @property
    def busy(self) -> bool:
        """Whether work is in flight, or has finished with a result that no call of `ask` has returned yet."""
        return self._open is not None

    def ask(self, question: Any, work: Callable[[], Any]) -> Any:
        """Run `work` and return or raise its result; return `PENDING`, to be retried, after `patience`.

        `work` does not start while a different question is pending; the answer to that one is discarded.
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
        """Run `work` and block until it ends; return or raise its result."""
        return self._thread.submit(work).result()

    def close(self, last: Callable[[], None]) -> None:
        """Run `last` after all other work and end the thread; blocks for at most `GOODBYE` seconds."""
        done = self._thread.submit(last)
        self._thread.shutdown(wait=False)
        wait([done], timeout=GOODBYE)


Answers = Mapping[Partition, "Future[int | None]"]


class Offsets:
    """Offset requests to the brokers, one to each leader.

    A leader that did not answer in time is not awaited again until it has answered a request in the background.

    Attributes:
        stale: whether an answer showed that the known leaders or topics have changed.
    """

    def __init__(self, cluster: Cluster, patience: float) -> None:
        self._cluster = cluster
        self._patience = patience
        self._watched: dict[int, Answers] = {}
        self.stale = False

    def ask(self, topics: Mapping[str, Topic], wanted: Mapping[Partition, int]) -> dict[Partition, int | None]:
        """Request offsets; return those of the partitions whose leaders answered.

        `wanted`: partition → the offset to request, as for `Cluster.ask`.
        """
        groups: dict[int, dict[Partition, int]] = {}
        for (topic, number), spec in wanted.items():
            leader = topics[topic].leaders.get(number) if topic in topics else None
            if leader is not None:
                groups.setdefault(leader, {})[topic, number] = spec
        self._watch(groups)
        asked = {
            leader: self._cluster.ask(group, self._patience * 4)
            for leader, group in groups.items()
            if leader not in self._watched
        }
        wait([answer for answers in asked.values() for answer in answers.values()], timeout=self._patience)
        found: dict[Partition, int | None] = {}
        for leader, answers in asked.items():
            good = _answered(answers)
            found.update(good)
            if len(good) < len(answers):
                self.stale = True
            if not good:
                self._watched[leader] = answers
        return found

    def _watch(self, groups: Mapping[int, Mapping[Partition, int]]) -> None:
        for leader, answers in list(self._watched.items()):
            if _answered(answers) or leader not in groups:
                del self._watched[leader]
            elif all(answer.done() for answer in answers.values()):
                self._watched[leader] = self._cluster.ask(dict.fromkeys(groups[leader], LATEST), self._patience * 4)


def _answered(answers: Answers) -> dict[Partition, int | None]:
    return {
        partition: answer.result()
        for partition, answer in answers.items()
        if answer.done() and answer.exception() is None
    }


LOOK = 2.0
"""Seconds to wait for a list of topics."""

ASK = 1.0
"""Seconds to wait for the offsets of one leader."""

_SAMPLING = {"queued.min.messages": 1, "queued.max.messages.kbytes": 2048, "max.partition.fetch.bytes": 1 << 18}
AWAY = 1.0
"""Maximum seconds between two listings while a partition is unavailable, or if the last listing failed."""


class WouldAskError(Exception):
    """The result requires a request to the brokers, which is not allowed now (`KafkaView.mute`)."""


class KafkaView:
    """Cached view of topics and end offsets, which asks the brokers if needed, with a timeout of a few seconds.

    Attributes:
        topics: existing topics, as of the last listing.
        ends: partition → its end offset, as of the last `ask_ends`; omits unavailable partitions.
        away: partitions that were unavailable at that time.
        trouble: why the last listing failed; empty if it succeeded.
        mute: whether to raise `WouldAskError` instead of making requests.
    """

    def __init__(self, source: KafkaSource, cluster: Cluster, monotonic: Callable[[], float]) -> None:
        self._source = source
        self._cluster = cluster
        self._monotonic = monotonic
        self._offsets = Offsets(cluster, ASK)
        self._sampler: RangeReader | None = None
        self._asked = 0.0
        self.topics: Mapping[str, Topic] = {}
        self.ends: dict[Partition, int] = {}
        self.away: set[Partition] = set()
        self.trouble = ""
        self.mute = False

    @property
    def partitions(self) -> list[Partition]:
        """All known partitions, in order."""
        return [(name, number) for name, topic in sorted(self.topics.items()) for number in sorted(topic.leaders)]

    def look(self, *, now: bool) -> bool:
        """List topics and partitions again if that is due, or if `now`; return False if no broker answers."""
        if not (now or self._due()):
            return True
        self.check_mute()
        self._asked = self._monotonic()
        try:
            self.topics = dict(self._cluster.topics(self._names(), LOOK))
        except Unavailable as error:
            self.trouble = str(error)
            return bool(self.topics) and not now
        self.trouble = ""
        self._offsets.stale = False
        return True

    def _due(self) -> bool:
        unsettled = self.away or self.trouble or self._offsets.stale
        every = min(AWAY, self._source.discover) if unsettled else self._source.discover
        return not self.topics or self._monotonic() >= self._asked + every

    def _names(self) -> list[str]:
        patterns = self._source.patterns
        existing = self._cluster.names(LOOK) if patterns else []
        matching = [name for name in existing if any(pattern.search(name) for pattern in patterns)]
        return sorted({*self._source.named, *matching})

    def ask_ends(self, partitions: Collection[Partition]) -> None:
        """Request the end offsets of `partitions`, with one request to each leader."""
        found = self._ask(dict.fromkeys(partitions, LATEST))
        self.ends = {partition: end for partition, end in found.items() if end is not None}
        self.away = set(partitions) - set(self.ends)

    def beginnings(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        """Return the first offsets of `partitions`, omitting unavailable partitions."""
        found = self._ask(dict.fromkeys(partitions, EARLIEST))
        return {partition: offset for partition, offset in found.items() if offset is not None}

    def starts(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        """Return the start offsets that the user chose for `partitions`, omitting unavailable partitions."""
        start = self._source.start
        if isinstance(start, Mapping):
            chosen = {(topic, n): start[topic][n] for topic, n in partitions if n in start.get(topic, {})}
            return {**self.beginnings([partition for partition in partitions if partition not in chosen]), **chosen}
        if start == "earliest":
            return self.beginnings(partitions)
        if isinstance(start, datetime):
            return self.offsets_at(partitions, -((EPOCH - start) // timedelta(milliseconds=1)))
        found = self._ask(dict.fromkeys(partitions, LATEST))
        return {partition: offset for partition, offset in found.items() if offset is not None}

    def offsets_at(self, partitions: Collection[Partition], milliseconds: int) -> dict[Partition, int]:
        """Return the first offset of each partition at or after a time, else its end; omit unavailable partitions."""
        # Records have no times before 1970, and negative numbers stand for ends and beginnings.
        found = self._ask(dict.fromkeys(partitions, max(milliseconds, 0)))
        beyond = [partition for partition, offset in found.items() if offset is None]
        ends = self._ask(dict.fromkeys(beyond, LATEST))
        return {partition: offset for partition, offset in {**found, **ends}.items() if offset is not None}

    def mean_size(self, partition: Partition, extent: Range) -> float | None:
        """Return the mean size of the records in a range, in bytes; None if it cannot be determined."""
        self.check_mute()
        if self._sampler is None:
            self._sampler = RangeReader({**self._source.settings, **_SAMPLING}, self._source.isolation)
        try:
            sizes = list(map(len, self._sampler.read({partition: extent}, {}, ASK)[partition]))
        except (Unavailable, Unreadable):
            return None
        finally:
            self._sampler.leave()
        return sum(sizes) / len(sizes) if sizes else None

    def close_sampler(self) -> None:
        """Close the reader of samples; the next sample opens another one."""
        if self._sampler is not None:
            self._sampler.close()
        self._sampler = None

    def _ask(self, wanted: Mapping[Partition, int]) -> dict[Partition, int | None]:
        if not wanted:
            return {}
        self.check_mute()
        return self._offsets.ask(self.topics, wanted)

    def check_mute(self) -> None:
        """Raise `WouldAskError` if the view is muted; called before every request."""
        if self.mute:
            raise WouldAskError
