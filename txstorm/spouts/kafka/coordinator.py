"""Coordinator of Kafka spouts: plans the next offset ranges from the positions read and the brokers' offsets.

It is one module, as planning, clocks and facts are about the same positions and share one view of the brokers.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from txstorm.api.context import SourceFacts
from txstorm.api.spout import NOT_READY, SpoutCoordinator
from txstorm.clients.kafka.cluster import Cluster, GroupPositions, Partition, Range
from txstorm.clocks import Clock
from txstorm.errors import SpoutError
from txstorm.spouts.kafka.brokers import PENDING, Aside, KafkaView, WouldAskError
from txstorm.spouts.kafka.options import KafkaSource
from txstorm.spouts.kafka.ranges import (
    Batch,
    Lost,
    Positions,
    Sizes,
    all_held,
    bounded,
    clock_name,
    named,
    plan_ranges,
)
from txstorm.spouts.user_calls import Notices

log = logging.getLogger(__name__)

PATIENCE = 0.2
"""Seconds to block for an answer: healthy brokers need milliseconds; a later answer is fetched by the next call."""


class KafkaCoordinator(SpoutCoordinator):
    """Coordinator that plans offset ranges; see `txstorm.spouts.kafka.spout.TransactionalKafkaSpout`."""

    def __init__(
        self,
        source: KafkaSource,
        component: str,
        cluster: Cluster | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        patience: float = PATIENCE,
    ) -> None:
        self._source = source
        self._component = component
        self._monotonic = monotonic
        self._view = KafkaView(source, cluster or Cluster(source.settings, source.isolation), monotonic)
        self._sizes = Sizes(source.rows, source.size, self._view.mean_size, monotonic)
        self._aside = Aside(patience)
        self._last = self._highest = 0
        self._found: dict[tuple[str, Partition], int] = {}
        self._away: set[Partition] = set()
        self._trouble = ""
        self._notices = Notices(component, log)
        self._lag = None if source.group is None else GroupPositions(source.settings, source.group, monotonic)

    def initialize_transaction(self, txid: int, prev_metadata: Any, upto: Clock | None = None) -> Any:
        """Plan the next ranges; `NOT_READY` if there is nothing to read, no broker answers, or an answer is pending."""
        if upto is not None and prev_metadata is not None and all_held(Positions.after(prev_metadata), upto):
            return NOT_READY
        # First in this run, or planned again after a failure, whose cause may be outdated cached knowledge.
        again = self._last == 0 or txid <= self._last
        batch = self._planned(txid, prev_metadata, upto, again=again)
        if batch is PENDING:
            return NOT_READY
        self._say_changes()
        # A txid that was started and failed is planned again, even if no data is left for it. The first one records a
        # start that may move.
        pins = prev_metadata is None and self._source.start != "earliest" and batch and batch.positions.next
        if batch is None or (txid > self._highest and not (batch.ranges or batch.lost or pins)):
            return NOT_READY
        self._last, self._highest = txid, max(txid, self._highest)
        self._say_news(txid, batch, first=prev_metadata is None)
        return batch.to_json()

    def _planned(self, txid: int, before: Any, upto: Clock | None, *, again: bool) -> Any:
        """Return the next `Batch`; None if the brokers are unavailable, `PENDING` while a request is in flight."""
        if not again and not self._aside.busy:
            # Cached offsets suffice for a backlog, and using them here is cheaper than a thread switch.
            self._view.mute = True
            try:
                return self._plan(before, upto, again=False)
            except WouldAskError:
                pass
            finally:
                self._view.mute = False
        return self._aside.ask((txid, before, upto), lambda: self._plan(before, upto, again=again))

    def _plan(self, before: Any, upto: Clock | None, *, again: bool) -> Batch | None:
        """Plan the batch after the one with metadata `before`; None if the brokers are unavailable."""
        if again:
            self._view.close_sampler()  # it may be the cause of the failure: see `Readers.lend`
        if not self._view.look(now=again):
            return None
        return self._batch(Positions.after(before), upto, first=before is None, again=again)

    def _batch(self, before: Positions, upto: Clock | None, *, first: bool, again: bool) -> Batch:
        positions, lost = self._same_topics(before)
        positions, new = self._with_new(positions, upto, first=first)
        if again:
            positions, out_of_range = self._within(positions)
            lost += out_of_range
        else:
            self._look_ahead(positions)
            if any(self._view.ends.get(partition, start) < start for partition, start in positions.next.items()):
                # The partition ends before the position: perhaps it is another topic of the same name.
                self._view.look(now=True)
                return self._batch(before, upto, first=first, again=True)
        ranges = plan_ranges(positions.next, bounded(self._view.ends, upto), self._budgets(positions))
        return Batch(positions, ranges, new=new, away=self._view.away, lost=lost)

    def _look_ahead(self, positions: Positions) -> None:
        """Request the end offsets, unless the known ones already suffice to fill a batch of every topic, and more.

        If the batch reached all known ends, they would have to be those of now: the facts say that it is caught up.
        """
        budgets, ends = self._budgets(positions), self._view.ends
        planned = dict.fromkeys({topic for topic, _ in positions.next}, 0)
        stops = dict(positions.next)
        for partition, (start, stop) in plan_ranges(positions.next, ends, budgets).items():
            planned[partition[0]] += stop - start
            stops[partition] = stop
        unfilled = any(count < budgets.get(topic, 1) for topic, count in planned.items())
        if not planned or unfilled or all(one in ends and stop >= ends[one] for one, stop in stops.items()):
            self._view.ask_ends(positions.next)

    def _budgets(self, positions: Positions) -> dict[str, int]:
        waiting: dict[str, dict[Partition, Range]] = {}
        for partition, start in positions.next.items():
            end = self._view.ends.get(partition, start)
            if end > start:
                waiting.setdefault(partition[0], {})[partition] = (start, end)
        return {topic: self._sizes.budget(topic, extents) for topic, extents in waiting.items()}

    # -- topics, partitions and offsets now, compared with the positions ----------------------------------------

    def _same_topics(self, positions: Positions) -> tuple[Positions, list[Lost]]:
        """Return `positions` without recreated topics, and the lost offsets; raise `SpoutError` if none may be lost."""
        topics = self._view.topics
        recreated = {name for name, known in positions.ids.items() if name in topics and topics[name].id != known}
        lost = [
            Lost((topic, number), start, None, "the topic was deleted and recreated")
            for (topic, number), start in positions.next.items()
            if topic in recreated
        ]
        self._refuse_lost(lost)
        there = set(self._view.partitions)
        if not self._source.opaque and (missing := sorted(positions.next.keys() - there)):
            raise SpoutError(
                f"spout {self._component!r}: {', '.join(map(named, missing))}: not at {self._source.servers} any more; "
                "a transactional spout needs all its partitions: restore them, or use OpaqueTransactionalKafkaSpout"
            )
        for partition in [partition for partition in self._view.ends if partition[0] in recreated]:
            del self._view.ends[partition]
        ids = {topic: known for topic, known in positions.ids.items() if topic not in recreated}
        return Positions(ids, {one: at for one, at in positions.next.items() if one[0] not in recreated}), lost

    def _with_new(self, positions: Positions, upto: Clock | None, *, first: bool) -> tuple[Positions, list[Partition]]:
        """Return `positions` with those of new partitions added, and the new partitions; `upto` may hold these back."""
        new = [partition for partition in self._view.partitions if partition not in positions.next]
        if upto is not None and not first:
            new = [partition for partition in new if clock_name(partition) in upto]
        if not new:
            return positions, []
        keys = {partition: (self._view.topics[partition[0]].id, partition) for partition in new}
        unknown = [partition for partition in new if keys[partition] not in self._found]
        asked = self._view.starts(unknown) if first else self._view.beginnings(unknown)
        self._found.update({keys[partition]: offset for partition, offset in asked.items()})
        joined = {partition: self._found[key] for partition, key in keys.items() if key in self._found}
        ids = {**positions.ids, **{topic: self._view.topics[topic].id for topic, _ in joined}}
        return Positions(ids, {**positions.next, **joined}), list(joined)

    def _within(self, positions: Positions) -> tuple[Positions, list[Lost]]:
        """Return `positions` moved into the brokers' ranges, and the lost offsets, or raise `SpoutError`."""
        beginnings = self._view.beginnings(positions.next)
        self._view.ask_ends(positions.next)
        lost, moved = [], {}
        for partition, start in positions.next.items():
            begin, end = beginnings.get(partition, start), self._view.ends.get(partition, start)
            if start < begin:
                lost.append(Lost(partition, start, begin, f"it begins at {begin} now: retention or delete_records"))
                moved[partition] = begin
            elif start > end:
                lost.append(Lost(partition, end, start, f"it ends at {end} now, but was read up to {start}"))
                moved[partition] = end
        self._refuse_lost(lost)
        return replace(positions, next={**positions.next, **moved}), lost

    def _refuse_lost(self, lost: Collection[Lost]) -> None:
        if lost and not self._source.opaque:
            raise SpoutError(
                f"spout {self._component!r}: offsets that can no longer be read: {'; '.join(map(str, lost))}; a "
                "transactional spout reads every offset: use OpaqueTransactionalKafkaSpout to continue without them, "
                "or start in a new data directory"
            )

    # -- notices ------------------------------------------------------------------------------------------------

    def _say_news(self, txid: int, batch: Batch, *, first: bool) -> None:
        for lost in batch.lost:
            self._notices.say(f"txid {txid}: lost: {lost}; recorded with the txid")
        for partition in [] if first else sorted(batch.new):
            self._notices.say(
                f"txid {txid}: {named(partition)} is new, read from offset {batch.positions.next[partition]}"
            )

    def _say_changes(self) -> None:
        trouble, before = self._view.trouble, self._trouble
        self._trouble = trouble
        if bool(trouble) != bool(before):
            self._notices.say(f"the brokers do not answer: {trouble}" if trouble else "the brokers answer again")
        newly_away, back = sorted(self._view.away - self._away), sorted(self._away - self._view.away)
        self._away = set(self._view.away)
        if newly_away:
            self._notices.say(f"away: {', '.join(map(named, newly_away))}; positions are kept, the others continue")
        if back:
            self._notices.say(f"back: {', '.join(map(named, back))}")

    def notices(self) -> list[str]:
        """See `SpoutCoordinator`."""
        return self._notices.take()

    def facts(self, metadata: Any) -> SourceFacts:
        """Return the partitions, by number if there is one topic, and whether all ends are reached.

        Ends that the brokers are being asked for are not known, so that a slow broker is not taken for a read topic.
        """
        positions = Positions.after(metadata)
        one = len(positions.ids) == 1
        names = [str(number) if one else f"{topic}/{number}" for topic, number in positions.next]
        ends = self._view.ends
        read = (partition in ends and offset >= ends[partition] for partition, offset in positions.next.items())
        caught_up = not self._aside.busy and all(read)
        return SourceFacts(tuple(names), caught_up=caught_up and bool(names))

    def clock(self, metadata: Any) -> dict[str, int]:
        """See `SpoutCoordinator`: the consumer's positions − 1, so that gaps and control records are passed."""
        return {clock_name(partition): end - 1 for partition, end in Positions.after(metadata).next.items()}

    def at_clock(self, clock: Mapping[str, int]) -> Any:
        """See `SpoutCoordinator`; blocks until the brokers answer, and takes their topics for those of the clock."""
        topics: Mapping[str, Any] = self._aside.wait(lambda: self._topics(now=True))
        positions: dict[Partition, int] = {}
        for name, offset in clock.items():
            topic, _, number = name.rpartition("-")
            if topic not in topics or not number.isdecimal():
                there = ", ".join(topics) or "none"
                msg = f"spout {self._component!r}: the clock has partition {name!r}, but the topics are {there}"
                raise SpoutError(msg)
            positions[topic, int(number)] = offset + 1
        return Batch(Positions({topic: topics[topic].id for topic, _ in positions}, positions)).to_json()

    def _topics(self, *, now: bool = False) -> Mapping[str, Any]:
        """Return the topics; raise `SpoutError` if no broker answers. `now`: ask them even if some are known."""
        if not self._view.look(now=now or not self._view.topics):
            raise SpoutError(f"spout {self._component!r}: the brokers do not answer: {self._view.trouble}")
        return self._view.topics

    def offsets(self, metadata: Any) -> dict[str, int]:
        """See `SpoutCoordinator`; raise `SpoutError` if a topic was recreated since. Call after `offsets_at`."""
        positions, topics = Positions.after(metadata), self._view.topics
        recreated = [topic for topic, id in positions.ids.items() if topic in topics and topics[topic].id != id]
        if recreated:
            raise SpoutError(
                f"spout {self._component!r}: topic {recreated[0]!r} was deleted and recreated since, so its offsets "
                "today say nothing of the transactions before"
            )
        return {named(partition): offset for partition, offset in positions.next.items()}

    def offsets_at(self, when: int) -> dict[str, int]:
        """See `SpoutCoordinator`: the times are those of the records; blocks until the brokers answer."""
        found: Mapping[Partition, int] = self._aside.wait(lambda: self._offsets_at(-(-when // 1000)))
        return {named(partition): offset for partition, offset in found.items()}

    def _offsets_at(self, milliseconds: int) -> dict[Partition, int]:
        self._topics()
        found = self._view.offsets_at(self._view.partitions, milliseconds)
        if away := [named(one) for one in self._view.partitions if one not in found]:
            msg = f"spout {self._component!r}: {', '.join(away)}: not available, so its offsets are unknown; try again"
            raise SpoutError(msg)
        return found

    # -- available and committed positions ----------------------------------------------------------------------

    def latest(self) -> Any:
        """Return topic → its id and the ends of its available partitions; blocks until the brokers answer."""
        return self._aside.wait(self._ends)

    def _ends(self) -> Any:
        self._topics()
        self._view.ask_ends(self._view.partitions)
        mark: dict[str, Any] = {}
        for (topic, number), end in self._view.ends.items():
            mark.setdefault(topic, {"id": self._view.topics[topic].id, "ends": {}})["ends"][number] = end
        return mark

    def reached(self, metadata: Any, mark: Any) -> bool:
        """Return whether every partition of `mark` was read to its end, ignoring unavailable and recreated ones."""
        positions, topics = Positions.after(metadata), self._view.topics
        if not self._source.opaque and any(topic not in topics for topic in positions.ids):
            return False  # planning reports the missing topic
        return all(
            self._position(positions, entry["id"], (topic, number)) >= end or (topic, number) in self._view.away
            for topic, entry in mark.items()
            if topic in topics and topics[topic].id == entry["id"]
            for number, end in entry["ends"].items()
        )

    def _position(self, positions: Positions, id: str, partition: Partition) -> int:
        """Return the next offset of `partition` of topic `id`: as recorded or, if it was empty so far, its start."""
        if positions.ids.get(partition[0]) == id and partition in positions.next:
            return positions.next[partition]
        return self._found.get((id, partition), 0)

    def committed(self, metadata: Any) -> None:
        """See `SpoutCoordinator`."""
        if self._lag is not None:
            self._lag.committed(Positions.after(metadata).next)

    def close(self) -> None:
        """Close all clients; a client blocked on unavailable brokers is closed after its timeout."""
        if self._lag is not None:
            self._lag.close()
        self._aside.close(self._view.close_sampler)
