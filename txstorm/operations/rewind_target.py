"""Rewind target for a time: the last transaction at which no input had reached it, by binary search over txids."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from txstorm.api.context import EPOCH, TaskContext
from txstorm.api.names import DEFAULT_STREAM, near
from txstorm.books.data_directory import check_readable
from txstorm.errors import DataDirectoryError, InputError, StateError
from txstorm.results.read import list_states
from txstorm.results.views import StateView, committed_txid, identity_of, kept_txid, read_directory_history
from txstorm.results.windows import PROGRESS
from txstorm.spouts.executors import planner
from txstorm.spouts.port import SpoutPlanner
from txstorm.storage.tables.identity import TableRef
from txstorm.storage.tables.intent import CHANGES
from txstorm.storage.tables.table import DeltaTableState, open_table
from txstorm.topology.graph import Topology
from txstorm.windows.records import COMPONENT
from txstorm.windows.rules.event_time import MICROSECOND, instant


@dataclass(frozen=True)
class SourceOffset:
    """The offset of a partition of a source, and its first offset whose record is of the wanted time or later."""

    partition: str
    offset: int
    wanted: int


@dataclass(frozen=True)
class RewindTarget:
    """The transaction to which a rewind to a time goes, with the positions as of it.

    Attributes:
        topology: id of the topology.
        time: the time.
        txid: the last transaction at which no input had reached the time.
        inputs: the positions of windows and joins; empty if there are none.
        sources: the offsets of the topics, if they decided because there are no windows and joins.
    """

    topology: str
    time: datetime
    txid: int
    inputs: tuple[InputPosition, ...] = ()
    sources: tuple[SourceOffset, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the target as JSON."""
        inputs = [
            {"component": one.component, "source": one.source, "stream": one.stream,
             "partition": one.partition or None, "position": instant(one.time).isoformat()}
            for one in self.inputs
        ]  # fmt: skip
        sources = [{"partition": one.partition, "offset": one.offset, "at_time": one.wanted} for one in self.sources]
        return {"topology": self.topology, "time": self.time.isoformat(), "txid": self.txid,
                "inputs": inputs, "sources": sources}  # fmt: skip


def rewind_target(
    data_dir: str | Path,
    time: datetime,
    component: str | None = None,
    code: Callable[[], Topology] | None = None,
) -> RewindTarget:
    """Find the last transaction at which no partition of any window or join input had reached `time`.

    Without windows and joins of event time, the partitions of the topics that the topology reads decide. Nothing is
    changed, and a run may be live. With `component` only the inputs of that windowed component or join count; `code`
    returns the topology, and is called only if the topics decide.

    Raises:
        InputError: `time` is naive, before the kept history, or after all that was read; or there is no such component.
        DataDirectoryError: the directory has no transactions, or is damaged.
        SpoutError: the brokers do not answer, or the topics are others by now.
    """
    if not isinstance(time, datetime) or time.tzinfo is None:
        raise InputError(f"rewind: expected a time with a zone, an aware datetime, got {time!r}")
    directory = check_readable(data_dir)
    identity, last = identity_of(directory), committed_txid(directory)
    if identity is None or not last:
        raise DataDirectoryError(f"{directory}: no transaction is committed there; there is nothing to rewind")
    time = time.astimezone(UTC)
    when = (time - EPOCH) // MICROSECOND
    names = timed_components(directory) if component is None else [_known(directory, component)]
    now = [one for name in names for one in input_positions(directory, name)]
    if now:
        by_event_time = _EventTimes(directory, sorted({one.component for one in now}), when)
        txid = _last_before(directory, time, last, by_event_time)
        return RewindTarget(identity.topology, time, txid, inputs=tuple(by_event_time.at(txid)))
    if component is not None:
        msg = f"{directory}: {component!r} has no event time, or has received nothing yet; leave --component out"
        raise InputError(msg)
    if code is None:
        raise InputError(
            f"{directory}: no windows or joins of event time, so the topics decide, and these are asked through the "
            "code of the topology; give it as well"
        )
    topology = code()
    spout = topology.spout
    context = TaskContext(topology.id, spout.id, 0, spout.parallelism, topology.settings.model_dump())
    with closing(planner(spout.object, context)) as asked:
        by_offsets = _TopicOffsets(directory, asked, when)
        txid = _last_before(directory, time, last, by_offsets)
        return RewindTarget(identity.topology, time, txid, sources=tuple(by_offsets.at(txid)))


def _known(directory: Path, component: str) -> str:
    known = timed_components(directory)
    if component not in known:
        there = f"there are {', '.join(known)}" if known else "there are none"
        raise InputError(f"{directory}: no windowed component or join {component!r}{near(component, known)}; {there}")
    return component


class _EventTimes:
    """Positions of components in event time."""

    def __init__(self, directory: Path, components: list[str], when: int) -> None:
        self._directory, self._components, self._when = directory, components, when

    def at(self, txid: int) -> list[InputPosition]:
        """Return the positions as of a txid; raise `StateError` if they are not kept."""
        return [one for name in self._components for one in input_positions(self._directory, name, txid)]

    def reached(self, txid: int) -> str | None:
        """Return the position that is furthest beyond the time, in words; None if none has reached it."""
        found = max(self.at(txid), key=lambda one: one.time, default=None)
        return None if found is None or found.time < self._when else self._words(found)

    def newest(self, txid: int) -> str:
        """Return the furthest position, in words."""
        return self._words(max(self.at(txid), key=lambda one: one.time))

    @staticmethod
    def _words(one: InputPosition) -> str:
        return f"{one} had reached {instant(one.time).isoformat()}"


class _TopicOffsets:
    """Offsets of the topics that a topology reads, compared with those for the time."""

    def __init__(self, directory: Path, asked: SpoutPlanner, when: int) -> None:
        self._planner = asked
        wanted = asked.offsets_at(when)
        if wanted is None:
            raise InputError(
                f"{directory}: no windows or joins of event time, and no source is a topic whose records have times; "
                "choose the transaction yourself, with --to-txid: txstorm history shows when each was processed"
            )
        self._wanted: Mapping[str, int] = wanted
        rows = read_directory_history(directory).select(
            ["txid", "extents"]
        )  # by timeline: the last row of a txid counts
        self._documents = dict(zip(rows["txid"].to_pylist(), rows["extents"].to_pylist(), strict=True))

    def at(self, txid: int) -> list[SourceOffset]:
        """Return the offsets as of a txid; raise `StateError` if they are not kept."""
        if txid == 0:
            return []
        text = self._documents.get(txid)
        if text in (None, "null"):
            raise StateError(f"the history has no row of txid {txid} any more")
        offsets = self._planner.offsets(json.loads(text))
        return [SourceOffset(one, offsets[one], at) for one, at in sorted(self._wanted.items()) if one in offsets]

    def reached(self, txid: int) -> str | None:
        """Return a partition that has been read beyond the time, in words; None if there is none."""
        found = next((one for one in self.at(txid) if one.offset > one.wanted), None)
        return None if found is None else self._words(found)

    def newest(self, txid: int) -> str:
        """Return how far the partitions had been read, in words."""
        return ", ".join(map(self._words, self.at(txid)))

    @staticmethod
    def _words(one: SourceOffset) -> str:
        return (
            f"partition {one.partition} had been read up to offset {one.offset} ({one.wanted} is the first of the time)"
        )


def _last_before(directory: Path, time: datetime, last: int, positions: _EventTimes | _TopicOffsets) -> int:
    """Return the last txid up to `last` at which the time was not reached; raise `InputError` if there is none."""
    if positions.reached(last) is None:
        raise InputError(
            f"{directory}: {time.isoformat()} is after all that was read: as of txid {last}, the last committed one, "
            f"{positions.newest(last)}; there is nothing to rewind"
        )
    oldest = kept_txid(directory)
    low, high, first = oldest, last, ""  # `high` has reached the time
    while low < high:
        middle = (low + high) // 2
        try:
            reached = positions.reached(middle)
        except StateError:  # not kept, like all before it
            low, oldest = middle + 1, middle + 1
            continue
        if reached is None:
            low = middle + 1
        else:
            high, first = middle, reached
    if high <= oldest:
        raise InputError(
            f"{directory}: {time.isoformat()} is before the kept history: as of txid {oldest}, the first one kept, "
            f"{first or positions.reached(high)}; ask for a later time"
        )
    return high - 1


SIDES = ("left", "right")


@dataclass(frozen=True)
class InputPosition:
    """The newest time that a component has received from one partition of an input.

    Attributes:
        component: the windowed component or join.
        source, stream: the input; the source is empty if the component has only one and does not record it.
        partition: empty if the input has no partition field.
        time: UTC microseconds since 1970.
    """

    component: str
    source: str
    stream: str
    partition: str
    time: int

    def __str__(self) -> str:
        stream = "" if self.stream == DEFAULT_STREAM else f"/{self.stream}"
        part = f", partition {self.partition}" if self.partition else ""
        name = f"input {self.source}{stream}" if self.source else "the input"
        return f"{name} of {self.component}{part}"


def timed_components(data_dir: Path) -> list[str]:
    """Return the ids of the components that record their progress, except dropped ones; not all have event time."""
    names = (one for one in list_states(data_dir) if one.endswith(PROGRESS))
    return sorted(one.removesuffix(PROGRESS) for one in names if _changes(data_dir, one).until() is None)


def input_positions(data_dir: Path, component: str, txid: int | None = None) -> list[InputPosition]:
    """Read the positions of a component as of `txid` (None: the last committed); empty before it was added.

    Raises:
        StateError: `txid` is not committed, or no longer kept.
    """
    name = component + PROGRESS
    if txid is not None and txid < _changes(data_dir, name).since():
        return []
    rows = StateView(data_dir, name, txid).to_arrow()
    if "unit" not in rows.column_names or "record" not in rows.column_names:
        return []  # a state of the user's that happens to have such a name
    texts = rows.filter(pc.equal(rows.column("unit"), COMPONENT)).column("record").to_pylist()
    return [one for text in texts for one in _positions(component, json.loads(text))]


def _changes(data_dir: Path, name: str) -> DeltaTableState:
    return open_table(data_dir, TableRef(CHANGES, name))


def _positions(component: str, record: Mapping[str, Any]) -> Iterator[InputPosition]:
    """Yield the positions in the record of a component: of windows by number of the input, of joins by side."""
    about = record.get("about") or {}
    inputs = about.get("inputs")
    for number, part, time, _ in record.get("newest", ()):
        source, stream, *_ = inputs[number] if inputs else ("", DEFAULT_STREAM)
        yield InputPosition(component, source, stream, part, time)
    for side in SIDES:
        for part, time, _ in record.get(side, {}).get("partitions", ()):
            source, stream = about[side]["input"]
            yield InputPosition(component, source, stream, part, time)
