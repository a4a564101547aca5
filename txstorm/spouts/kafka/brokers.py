"""What the brokers hold now, as far as a coordinator knows: topics, their partitions, and where these end."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import datetime

from txstorm.clients.kafka.cluster import EARLIEST, LATEST, Partition, Topic, Unavailable
from txstorm.spouts.kafka.kafka_offsets import Asked, Offsets
from txstorm.spouts.kafka.options import KafkaSource

LOOK = 2.0
"""Seconds to wait for a list of topics."""

ASK = 1.0
"""Seconds to wait for the offsets of one leader."""

AWAY = 1.0
"""Seconds between two looks while a partition is away, or the last look failed, at most."""


class WouldAskError(Exception):
    """Only the brokers can tell, and they must not be asked here."""


class KafkaView:
    """Asks when it has to, and waits some seconds where nobody answers.

    Args:
        source: which topics.
        cluster: whom to ask.
        monotonic: seconds.

    Attributes:
        topics: those that are there, as of the last look.
        ends: partition → its end, as of the last `ask_ends`; without those that could not be asked.
        away: partitions that could not be asked then.
        trouble: why the last look failed; empty when it did not.
        mute: ask nobody: raise `WouldAskError` instead.
    """

    def __init__(self, source: KafkaSource, cluster: Asked, monotonic: Callable[[], float]) -> None:
        self._source = source
        self._cluster = cluster
        self._monotonic = monotonic
        self._offsets = Offsets(cluster, ASK)
        self._asked = 0.0
        self.topics: Mapping[str, Topic] = {}
        self.ends: dict[Partition, int] = {}
        self.away: set[Partition] = set()
        self.trouble = ""
        self.mute = False

    @property
    def partitions(self) -> list[Partition]:
        """All that are known."""
        return [(name, number) for name, topic in sorted(self.topics.items()) for number in sorted(topic.leaders)]

    def look(self, *, now: bool) -> bool:
        """See which topics and partitions there are, if it is time to, or `now`; False when nobody can say."""
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
        there = self._cluster.names(LOOK) if patterns else []
        matching = [name for name in there if any(pattern.search(name) for pattern in patterns)]
        return sorted({*self._source.named, *matching})

    def ask_ends(self, partitions: Collection[Partition]) -> None:
        """Learn the ends of `partitions`, in one request to each leader."""
        found = self._ask(dict.fromkeys(partitions, LATEST))
        self.ends = {partition: end for partition, end in found.items() if end is not None}
        self.away = set(partitions) - set(self.ends)

    def beginnings(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        """The first offsets of `partitions`; without those that cannot be asked."""
        found = self._ask(dict.fromkeys(partitions, EARLIEST))
        return {partition: offset for partition, offset in found.items() if offset is not None}

    def starts(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        """Where the user wants `partitions` to begin; without those that cannot be asked."""
        start = self._source.start
        if isinstance(start, Mapping):
            chosen = {one: start[one[0]][one[1]] for one in partitions if one[1] in start.get(one[0], {})}
            return {**self.beginnings([one for one in partitions if one not in chosen]), **chosen}
        if start == "earliest":
            return self.beginnings(partitions)
        spec = int(start.timestamp() * 1000) if isinstance(start, datetime) else LATEST
        found = self._ask(dict.fromkeys(partitions, spec))
        beyond = [partition for partition, offset in found.items() if offset is None]
        ends = self._ask(dict.fromkeys(beyond, LATEST))
        return {one: offset for one, offset in {**found, **ends}.items() if offset is not None}

    def _ask(self, wanted: Mapping[Partition, int]) -> dict[Partition, int | None]:
        if not wanted:
            return {}
        self.check_mute()
        return self._offsets.ask(self.topics, wanted)

    def check_mute(self) -> None:
        """Called before anybody is asked anything."""
        if self.mute:
            raise WouldAskError
