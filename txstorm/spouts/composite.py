"""Composite spouts: several sources as one spout, each of which may skip a transaction while the others emit.

The spout document is ``{"sources": {name: document of that source}}``. Keys of parts and digests are prefixed with the
name of their source, ``name/…``. The document of a source that was removed from the spout is kept, in case the source
is added again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

from txstorm.api.attempt import TransactionAttempt
from txstorm.api.context import SourceFacts, TaskContext
from txstorm.api.names import DEFAULT_STREAM
from txstorm.api.output import Collector, Refusals
from txstorm.api.spout import NOT_READY
from txstorm.clocks import Clock
from txstorm.errors import SpoutError
from txstorm.spouts.port import Parts, Plans, ReadKept, SpoutCommitter, SpoutPlanner, SpoutTask
from txstorm.typed import misfit_behind

_PARTITIONS = 1 << 40
"""More partitions than a source has."""


class CompositePlanner(SpoutPlanner):
    """Planner of a composite spout: plans a batch of each source that is ready.

    Args:
        planners: name → the planner of that source.
        component: the spout's id.
    """

    def __init__(self, planners: Mapping[str, SpoutPlanner], component: str) -> None:
        self.opaque = any(one.opaque for one in planners.values())
        self.task_planned = any(one.task_planned for one in planners.values())
        self.aligns = all(one.aligns for one in planners.values())
        self.sources = tuple(planners)
        self._planners = planners
        self._component = component
        self._asked: dict[str, tuple[Any, Any]] = {}

    def plan(self, txid: int, previous: Any, *, replay: bool = False, upto: Clock | None = None) -> Any:
        """Plan a batch of every source that is ready; the others are marked as skipped."""
        before = {} if previous is None else previous["sources"]
        made = {
            name: self._plan(name, txid, before.get(name), replay, None if upto is None else Clock(_of(name, upto)))
            for name in self._planners
        }
        self._asked = {}
        if all(document is NOT_READY for document in made.values()):
            return NOT_READY
        skipped = {name: self._planners[name].skip(before.get(name)) for name in made if made[name] is NOT_READY}
        return {"sources": {**self._left(before), **made, **skipped}}

    def _left(self, before: Mapping[str, Any]) -> dict[str, Any]:
        """Return the documents of sources that were removed from the spout."""
        return {name: {**one, "skipped": True} for name, one in before.items() if name not in self._planners}

    def _plan(self, name: str, txid: int, before: Any, replay: bool, upto: Clock | None) -> Any:
        # If a later source raises, planning is retried, without the sources that have already planned this txid.
        question, asked = (txid, before, upto), self._asked.get(name)
        if asked is not None and not replay and asked[0] == question:
            return asked[1]
        document = self._planners[name].plan(txid, before, replay=replay, upto=upto)
        if document is not NOT_READY:
            self._asked[name] = question, document
        return document

    def load_kept(self, read: ReadKept, plans: Plans) -> None:
        """Load the rows that each source keeps."""
        for name, one in self._planners.items():
            one.load_kept(partial(_read_of, read, name), partial(_plans_of, plans, name))

    def skip(self, previous: Any) -> Any:
        """Return the document of a txid in which all sources emit nothing."""
        before = {} if previous is None else previous["sources"]
        skipped = {name: one.skip(before.get(name)) for name, one in self._planners.items()}
        return {"sources": {**self._left(before), **skipped}}

    def facts(self, document: Any) -> dict[str, SourceFacts]:
        """Return the facts of all sources."""
        sources = document["sources"]
        return {name: fact for name, one in self._planners.items() for fact in one.facts(sources[name]).values()}

    def clock(self, document: Any) -> dict[str, int] | None:
        """Return the clocks of all sources; keys of partitions are prefixed with the name of their source."""
        clocks = {name: one.clock(document["sources"][name]) for name, one in self._planners.items()}
        if None in clocks.values():
            return None
        return {
            key: offset for name, clock in clocks.items() for key, offset in _under(name, dict(clock or {})).items()
        }

    def at_clock(self, clock: Mapping[str, int]) -> Any:
        """Return the document as of a clock; sources that it lacks are new, as in a spout that got another one."""
        parts: dict[str, dict[str, int]] = {}
        for key, offset in clock.items():
            name, _, partition = key.partition("/")
            parts.setdefault(name, {})[partition] = offset
        if strange := sorted(parts.keys() - self._planners.keys()):
            raise SpoutError(
                f"spout {self._component!r}: the clock is of source {strange[0]!r}, too, which does not exist here; "
                f"there are {', '.join(self._planners)}"
            )
        return {"sources": {name: self._planners[name].at_clock(part) for name, part in parts.items()}}

    def end_clock(self) -> dict[str, int]:
        """Return the ends of all sources; keys of partitions are prefixed with the name of their source."""
        found = ((name, one.end_clock()) for name, one in self._planners.items())
        return {key: offset for name, ends in found for key, offset in _under(name, dict(ends)).items()}

    def offsets(self, document: Any) -> dict[str, int]:
        """Return the offsets of all sources; keys of partitions are prefixed with the name of their source."""
        known = document["sources"]
        own = {name: one.offsets(known[name]) for name, one in self._planners.items() if name in known}
        return {key: offset for name, offsets in own.items() for key, offset in _under(name, dict(offsets)).items()}

    def offsets_at(self, when: int) -> dict[str, int] | None:
        """Return the offsets of the sources whose records have times; None if none have."""
        found = {name: one.offsets_at(when) for name, one in self._planners.items()}
        timed = {name: offsets for name, offsets in found.items() if offsets is not None}
        return {
            key: offset for name, offsets in timed.items() for key, offset in _under(name, dict(offsets)).items()
        } or (None if not timed else {})

    def payload(self, document: Any) -> Any:
        """Return the payloads of all sources, by name."""
        self._check_sources(document)
        return {name: self._planners[name].payload(one) for name, one in _emitting(document)}

    def _check_sources(self, document: Any) -> None:
        for name, _ in _emitting(document):
            if name not in self._planners:
                raise SpoutError(
                    f"spout {self._component!r}: a transaction that is not committed yet was planned with source "
                    f"{name!r}, which no longer exists (there are {', '.join(self._planners)}); "
                    "put it back, and take it out when nothing is in flight"
                )

    def latest(self) -> Any:
        """Return the marks of all sources; None if one has none (an empty transaction then marks the end)."""
        marks = {name: one.latest() for name, one in self._planners.items()}
        return None if None in marks.values() else marks

    def reached(self, document: Any, mark: Any) -> bool:
        """Return whether every source has reached its mark."""
        sources = {} if document is None else document["sources"]
        return all(one.reached(sources.get(name), mark[name]) for name, one in self._planners.items())

    def caught_up(self, document: Any) -> bool:
        """Return whether all sources have nothing after the txid of `document`."""
        sources = {} if document is None else document["sources"]
        return all(one.caught_up(sources.get(name)) for name, one in self._planners.items())

    def finish(self, document: Any, parts: Parts) -> Any:
        """Return `document` with the actual extents of all sources."""
        sources = dict(document["sources"])
        for name, one in self._planners.items():
            if one.task_planned and name in sources:
                sources[name] = one.finish(sources[name], _of(name, parts))
        return {**document, "sources": sources}

    def carried(self, document: Any) -> Parts:
        """Return the position of every partition of every source."""
        known = document["sources"]
        return {
            f"{name}/{key}": part
            for name, one in self._planners.items()
            if name in known
            for key, part in one.carried(known[name]).items()
        }

    def notices(self) -> list[str]:
        """Return the new notices of all sources."""
        return [notice for one in self._planners.values() for notice in one.notices()]

    def remarks(self) -> list[str]:
        """Return the remarks of all sources."""
        return [remark for one in self._planners.values() for remark in one.remarks()]

    def committed(self, document: Any) -> None:
        """Notify the sources that emitted in this txid."""
        for name, one in document["sources"].items():
            if name in self._planners and one.get("meta", True) is not None:
                self._planners[name].committed(one)

    def close(self) -> None:
        """Close all sources, even if one of them raises."""
        with ExitStack() as stack:
            for one in self._planners.values():
                stack.callback(one.close)


class CompositeTask(SpoutTask):
    """Task of a composite spout: emits this task's share of every source.

    Args:
        tasks: name → the task of that source.
        contexts: name → the context with which that task was created, updated from the spout's own `context`.
        streams: name → (stream name in that source → stream name in this spout).
    """

    def __init__(
        self,
        tasks: Mapping[str, SpoutTask],
        contexts: Mapping[str, TaskContext],
        context: TaskContext,
        streams: Mapping[str, Mapping[str, str]],
    ) -> None:
        self.sources = tuple(tasks)
        self._tasks = tasks
        self._contexts = contexts
        self._context = context
        self._streams = streams
        self._owner = {stream: name for name, known in streams.items() for stream in known.values()}

    def source_of(self, stream: str) -> str:
        """Return the source that emits to `stream`."""
        return self._owner[stream]

    def run(self, attempt: TransactionAttempt, document: Any, carried: Parts, collector: Collector) -> Parts:
        """Emit this task's share of every source; each source's partition positions are carried over separately."""
        parts: Parts = {}
        for number, (name, task) in enumerate(sorted(self._tasks.items())):
            if name not in document["sources"]:
                continue  # planned before this source was added
            own = self._contexts[name]
            own.attempt, own.stamp = attempt, self._context.stamp
            own.payload = (self._context.payload or {}).get(name)
            known = _of(name, carried)
            renamed = _SourceCollector(collector, name, self._streams[name], number)
            reported = task.run(attempt, document["sources"][name], known, renamed)
            carried.update(_under(name, known))
            parts.update(_under(name, reported))
        return parts

    def cleanup_before(self, txid: int) -> None:
        """Notify all sources that transactions before `txid` are committed."""
        for task in self._tasks.values():
            task.cleanup_before(txid)

    def close(self) -> None:
        """Close all sources, even if one of them raises."""
        with ExitStack() as stack:
            for task in self._tasks.values():
                stack.callback(task.close)


class CompositeCommitter(SpoutCommitter):
    """Commit phase of a composite spout, which runs that of every source that has one."""

    def __init__(self, committers: Mapping[str, SpoutCommitter]) -> None:
        self._committers = committers

    def commit(self, attempt: TransactionAttempt, stamp: int, parts: Parts) -> None:
        """Run the commit phase of each source, one after the other."""
        for name, committer in self._committers.items():
            committer.commit(attempt, stamp, _of(name, parts))

    def close(self) -> None:
        """Close the committers of all sources."""
        for committer in self._committers.values():
            committer.close()


class _SourceCollector:
    """Collector that renames a source's streams to their names in the composite spout, and numbers all partitions.

    `number` is that of the source, in the order of the sources' names.
    """

    def __init__(self, inner: Collector, source: str, streams: Mapping[str, str], number: int) -> None:
        self._inner = inner
        self._source = source
        # `inner` refuses a stream that the source does not declare, under the name that it would have.
        self._streams = streams
        self.report_error = self.reportError = inner.report_error
        self.origin(lambda row: {})
        self.note = inner.note
        self._first = number * _PARTITIONS
        self.partition(0)

    def emit(self, *values: Any, stream: str = DEFAULT_STREAM) -> None:
        self._inner.emit(*values, stream=self._named(stream))

    def emit_direct(self, task: int, *values: Any, stream: str = DEFAULT_STREAM) -> None:
        self._inner.emit_direct(task, *values, stream=self._named(stream))

    emitDirect = emit_direct  # noqa: N815 - Storm's name

    def emit_batch(self, batch: Any, stream: str = DEFAULT_STREAM) -> None:
        self._inner.emit_batch(batch, stream=self._named(stream))

    def refuse(self, error: BaseException, record: Any) -> None:
        if (misfit := misfit_behind(error)) is not None:
            misfit.column = f"{self._source}/{misfit.column}"
        self._inner.refuse(error, {"source": self._source, **record} if isinstance(record, dict) else record)

    def refuse_all(self, refusals: Refusals) -> None:
        head = f'{{"source": {json.dumps(self._source)}, '
        records = [head + record[1:] for record in refusals.records]
        columns = [None if name is None else f"{self._source}/{name}" for name in refusals.columns]
        replace(refusals, records=records, columns=columns).give(self._inner)

    def origin(self, place: Callable[[int], dict[str, Any]]) -> None:
        self._inner.origin(lambda row: {"source": self._source, **place(row)})

    def digest(self, partition: str, digest: str) -> None:
        self._inner.digest(f"{self._source}/{partition}", digest)

    def partition(self, number: int) -> None:
        self._inner.partition(self._first + number)

    def _named(self, stream: str) -> str:
        return self._streams.get(stream, f"{self._source}-{stream}")


def _read_of(read: ReadKept, name: str, source: str) -> Any:
    """Read what the source `name` keeps, which knows itself as a spout of one `source`."""
    return read(name)


def _plans_of(plans: Plans, name: str) -> dict[int, Any]:
    """Return the documents of the source `name`, where it has one."""
    known = {txid: document["sources"].get(name) for txid, document in plans().items()}
    return {txid: document for txid, document in known.items() if document is not None}


def _emitting(document: Any) -> Iterator[tuple[str, Any]]:
    """Yield the sources that emit in the txid of `document`, with their documents."""
    return ((name, source) for name, source in document["sources"].items() if not source.get("skipped"))


def _of(name: str, parts: Mapping[str, Any]) -> Parts:
    """Return the parts of source `name`, with the prefix ``name/`` removed from their keys."""
    prefix = f"{name}/"
    return {key.removeprefix(prefix): part for key, part in parts.items() if key.startswith(prefix)}


def _under(name: str, parts: Parts) -> Parts:
    return {f"{name}/{key}": part for key, part in parts.items()}
