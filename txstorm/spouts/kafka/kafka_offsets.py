"""Offsets asked of the leaders of partitions, without waiting long for one that does not answer."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from concurrent.futures import Future, wait
from typing import Protocol

from txstorm.clients.kafka.cluster import LATEST, Partition, Topic

Answers = Mapping[Partition, "Future[int | None]"]


class Asked(Protocol):
    """What is needed of `txstorm.clients.kafka.cluster.Cluster`."""

    def ask(self, wanted: Mapping[Partition, int], seconds: float) -> Answers:
        """See there."""

    def names(self, seconds: float) -> list[str]:
        """See there."""

    def topics(self, names: Collection[str], seconds: float) -> Mapping[str, Topic]:
        """See there."""

    def serve(self) -> str:
        """See there."""


class Offsets:
    """Asks for offsets, one request to each leader.

    A leader that has not answered in time is not waited for again, only watched by a request in the background,
    until it has answered that.

    Args:
        cluster: whom to ask.
        patience: seconds to wait for a leader.

    Attributes:
        stale: an answer said that the leaders or topics are not those that are known here.
    """

    def __init__(self, cluster: Asked, patience: float) -> None:
        self._cluster = cluster
        self._patience = patience
        self._watched: dict[int, Answers] = {}
        self.stale = False

    def ask(self, topics: Mapping[str, Topic], wanted: Mapping[Partition, int]) -> dict[Partition, int | None]:
        """The offsets of those partitions of `wanted` whose leaders answer.

        Args:
            topics: tells the leaders.
            wanted: as of `Cluster.ask`.
        """
        groups = _by_leader(topics, wanted)
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


def _by_leader(topics: Mapping[str, Topic], wanted: Mapping[Partition, int]) -> dict[int, dict[Partition, int]]:
    groups: dict[int, dict[Partition, int]] = {}
    for (topic, number), spec in wanted.items():
        leader = topics[topic].leaders.get(number) if topic in topics else None
        if leader is not None:
            groups.setdefault(leader, {})[topic, number] = spec
    return groups


def _answered(answers: Answers) -> dict[Partition, int | None]:
    return {one: answer.result() for one, answer in answers.items() if answer.done() and answer.exception() is None}
