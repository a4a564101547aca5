"""Spout executors: every kind of spout as a planner in the driver and a task in the workers.

The *spout document* of a txid is JSON. Driver-planned spouts: ``{"meta": <the coordinator's metadata>}``. Partitioned
spouts: ``{"count": n, "parts": parts}``; opaque partitioned spouts: ``{"parts": parts}``. `parts` is null until the
tasks have reported. It then maps every partition to ``{"batch": metadata}`` if it emitted in this txid, or else to
``{"kept": position}``, its position after an earlier txid, so that one document suffices to continue.
``"away": true`` marks a partition that was unavailable. A document with ``"skipped": true`` belongs to a
composite spout's source that emitted nothing, or to a system transaction. Facts of the plan are stored beside these
keys (see `txstorm.spouts.facts`).

It is one module because planners and tasks of all kinds share the formats of these documents.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from txstorm.api.attempt import TransactionAttempt
from txstorm.api.composite import AnySpout, CompositeSpout, kept_states
from txstorm.api.context import SourceFacts, TaskContext
from txstorm.api.output import Collector
from txstorm.api.spout import (
    NOT_READY,
    CommitterEmitter,
    CommitterTransactionalSpout,
    Emitter,
    OpaquePartitionedCoordinator,
    OpaquePartitionedEmitter,
    OpaquePartitionedTransactionalSpout,
    PartitionedCoordinator,
    PartitionedEmitter,
    PartitionedTransactionalSpout,
    SpoutCoordinator,
    TransactionalSpout,
)
from txstorm.clocks import Clock
from txstorm.errors import MetadataError, SpoutError
from txstorm.spouts.composite import CompositeCommitter, CompositePlanner, CompositeTask
from txstorm.spouts.frames import FrameSpout
from txstorm.spouts.port import Parts, Plans, ReadKept, SpoutCommitError, SpoutCommitter, SpoutPlanner, SpoutTask
from txstorm.spouts.user_calls import Notices, WatchedCollector, calling, checked_facts, partition_count, storable
from txstorm.user_code import accepts, copied, misfits

log = logging.getLogger(__name__)


def planner(spout: AnySpout, context: TaskContext) -> SpoutPlanner:
    """Create the planner of `spout` and its coordinator; `context.parallelism` is the number of emitters.

    Raises:
        TopologyFailed: the spout raised.
    """
    if isinstance(spout, CompositeSpout):
        planners = {name: planner(source, _of_source(context, name)) for name, source in spout.sources.items()}
        return CompositePlanner(planners, context.component)
    with calling(context.component, "coordinator()"):
        return _planner(spout, context)


def _planner(spout: AnySpout, context: TaskContext) -> SpoutPlanner:
    if isinstance(spout, TransactionalSpout):
        chosen = _fitting(spout.coordinator(context), SpoutCoordinator, context)
        if isinstance(spout, FrameSpout) and spout.emits_frames:
            return _FramePlanner(chosen, context.component, spout)
        return _DriverPlanner(chosen, context.component, spout.opaque)
    if isinstance(spout, PartitionedTransactionalSpout):
        return _PartitionedPlanner(
            _fitting(spout.coordinator(context), PartitionedCoordinator, context), context.component
        )
    if isinstance(spout, OpaquePartitionedTransactionalSpout):
        return _OpaquePlanner(
            _fitting(spout.coordinator(context), OpaquePartitionedCoordinator, context), context.component
        )
    raise _not_a_spout(spout, context)


T = TypeVar("T")
_fits: set[tuple[type, type]] = set()


def _fitting(given: T, base: type, context: TaskContext) -> T:
    """Return `given`, a user's coordinator or emitter; raise `SpoutError` if its methods do not fit those of `base`."""
    if (type(given), base) not in _fits:
        faults = list(misfits(given, base))
        if faults:
            raise SpoutError(f"spout {context.component!r}: {'; '.join(faults)}")
        _fits.add((type(given), base))
    return given


def _emitter_kind(spout: TransactionalSpout) -> type:
    return CommitterEmitter if isinstance(spout, CommitterTransactionalSpout) else Emitter


def spout_task(spout: AnySpout, context: TaskContext) -> SpoutTask:
    """Create task number `context.task` of `spout`, with its emitter."""
    if isinstance(spout, CompositeSpout):
        contexts = {name: _of_source(context, name) for name in spout.sources}
        tasks = {name: spout_task(source, contexts[name]) for name, source in spout.sources.items()}
        return CompositeTask(tasks, contexts, context, {name: spout.streams_of(name) for name in spout.sources})
    if isinstance(spout, TransactionalSpout):
        return _DriverPlannedTask(_fitting(spout.emitter(context), _emitter_kind(spout), context), context)
    if isinstance(spout, PartitionedTransactionalSpout):
        return _PartitionedTask(_fitting(spout.emitter(context), PartitionedEmitter, context), context)
    if isinstance(spout, OpaquePartitionedTransactionalSpout):
        return _OpaqueTask(_fitting(spout.emitter(context), OpaquePartitionedEmitter, context), context)
    raise _not_a_spout(spout, context)


def spout_committer(spout: AnySpout, context: TaskContext) -> SpoutCommitter | None:
    """Return the commit phase of `spout`, or None if it has none; emitters are created at the first commit."""
    if isinstance(spout, CompositeSpout):
        found = {name: spout_committer(source, _of_source(context, name)) for name, source in spout.sources.items()}
        committers = {name: committer for name, committer in found.items() if committer is not None}
        return CompositeCommitter(committers) if committers else None
    return _Committer(spout, context) if isinstance(spout, CommitterTransactionalSpout) else None


def _of_source(context: TaskContext, name: str) -> TaskContext:
    return replace(context, component=f"{context.component}/{name}", settings=copied(context.settings))


def check_spout(spout: AnySpout, states: Collection[str] = ()) -> None:
    """Call the method ``check()`` of `spout`, if it has one, to examine its source before anything is written.

    `states` are those that the data directory has; a source whose kept rows are among them is asked with ``begun``.

    Raises:
        SpoutError: the source is missing, unreadable or of another format; of a composite spout, all that are.
        TopologyFailed: the spout raised something else.
    """
    faults: list[SpoutError] = []
    begun = {name: state.name in states for name, (state, _) in kept_states(spout).items()}
    for name, source in (spout.sources if isinstance(spout, CompositeSpout) else {"": spout}).items():
        check = getattr(source, "check", None)
        if check is None:
            continue
        try:
            with calling(type(source).__name__, "check()"):
                check(**({"begun": True} if begun.get(name) else {}))
        except SpoutError as error:
            faults.append(error)
    if len(faults) == 1:
        raise faults[0]
    if faults:
        raise SpoutError("\n".join(dict.fromkeys(map(str, faults))))


class _DriverPlanner(SpoutPlanner):
    def __init__(self, coordinator: SpoutCoordinator, component: str, opaque: bool) -> None:
        self.opaque = opaque
        self.sources = (component,)
        self._coordinator = coordinator
        self._component = component
        self._knows = _overridden(coordinator, SpoutCoordinator.facts)
        self._ships = _overridden(coordinator, SpoutCoordinator.payload)
        self._tells = _overridden(coordinator, SpoutCoordinator.caught_up)
        self._listens = _overridden(coordinator, SpoutCoordinator.committed)
        self._timed = _overridden(coordinator, SpoutCoordinator.clock)
        self._waits = _overridden(coordinator, SpoutCoordinator.is_at_hand)
        self.aligns = self._timed and accepts(coordinator.initialize_transaction, "upto")

    def plan(self, txid: int, previous: Any, *, replay: bool = False, upto: Clock | None = None) -> Any:
        if not replay and not self._coordinator.is_ready():
            return NOT_READY
        initialize: Any = self._coordinator.initialize_transaction
        meta = initialize(txid, _meta(previous), **({} if upto is None else {"upto": upto}))
        return meta if meta is NOT_READY else {"meta": storable(meta, f"spout {self._component!r}, txid {txid}")}

    def load_kept(self, read: ReadKept, plans: Plans) -> None:
        if not _overridden(self._coordinator, SpoutCoordinator.load_kept):
            return
        known = {txid: meta for txid, one in plans().items() if (meta := _meta(one)) is not None}
        with calling(self._component, "load_kept()"):
            self._coordinator.load_kept(read(""), known)

    def skip(self, previous: Any) -> Any:
        return {"meta": _meta(previous), "skipped": True}

    def facts(self, document: Any) -> dict[str, SourceFacts]:
        if not self._knows:
            return {}
        with calling(self._component, "facts()"):
            return {self._component: checked_facts(self._coordinator.facts(_meta(document)), self._component)}

    def clock(self, document: Any) -> Mapping[str, int] | None:
        if not self._timed:
            return None
        with calling(self._component, "clock()"):
            found = self._coordinator.clock(_meta(document))
            return None if found is None else Clock(found)

    def at_clock(self, clock: Mapping[str, int]) -> Any:
        if not (self._timed and _overridden(self._coordinator, SpoutCoordinator.at_clock)):
            return super().at_clock(clock)
        what = f"spout {self._component!r}, at clock {Clock(clock)}"
        with calling(self._component, "at_clock()"):
            made = {"meta": storable(self._coordinator.at_clock(Clock(clock)), what)}
        found = self.clock(made) or {}
        if any(found.get(name) != offset for name, offset in clock.items()):
            raise SpoutError(f"{what}: at_clock() gave metadata of another clock: {Clock(found)}")
        return made

    def end_clock(self) -> Mapping[str, int]:
        with calling(self._component, "end_clock()"):
            return dict(self._coordinator.end_clock() or {})

    def offsets(self, document: Any) -> Mapping[str, int]:
        with calling(self._component, "offsets()"):
            return dict(self._coordinator.offsets(_meta(document)))

    def offsets_at(self, when: int) -> Mapping[str, int] | None:
        with calling(self._component, "offsets_at()"):
            return self._coordinator.offsets_at(when)

    def payload(self, document: Any) -> Any:
        if not self._ships:
            return None
        with calling(self._component, "payload()"):
            return self._coordinator.payload(_meta(document))

    def is_at_hand(self, document: Any) -> bool:
        if not self._waits or document.get("skipped"):
            return True
        with calling(self._component, "is_at_hand()"):
            return bool(self._coordinator.is_at_hand(_meta(document)))

    def latest(self) -> Any:
        with calling(self._component, "latest()"):
            return copied(self._coordinator.latest())

    def caught_up(self, document: Any) -> bool:
        with calling(self._component, "caught_up()"):
            known = self._coordinator.caught_up(_meta(document)) if self._tells else None
        return super().caught_up(document) if known is None else known

    def reached(self, document: Any, mark: Any) -> bool:
        with calling(self._component, "reached()"):
            return self._coordinator.reached(_meta(document), copied(mark))

    def notices(self) -> list[str]:
        with calling(self._component, "notices()"):
            return list(self._coordinator.notices())

    def remarks(self) -> list[str]:
        with calling(self._component, "remarks()"):
            return [f"{self._component}: {one}" for one in self._coordinator.remarks()]

    def committed(self, document: Any) -> None:
        if not self._listens:
            return
        try:
            self._coordinator.committed(_meta(document))
        except Exception:
            log.exception("spout %s: committed() failed; no effect on the transaction", self._component)

    def close(self) -> None:
        self._coordinator.close()


class _FramePlanner(_DriverPlanner):
    """Planner of a frame spout.

    The payload of a txid is a function of a session that returns its DataFrame, and what is known of its rows.
    """

    def __init__(self, coordinator: SpoutCoordinator, component: str, spout: FrameSpout) -> None:
        super().__init__(coordinator, component, spout.opaque)
        self._spout = spout

    def payload(self, document: Any) -> Any:
        metadata = _meta(document)
        return lambda session: (self._spout.frame(session, metadata), self._spout.known(metadata))


class _TaskPlanner(SpoutPlanner):
    task_planned = True

    def finish(self, document: Any, parts: Parts) -> Any:
        return {**document, "parts": _sorted(parts)}

    def carried(self, document: Any) -> Parts:
        return dict(document["parts"] or {})


class _PartitionedPlanner(_TaskPlanner):
    def __init__(self, coordinator: PartitionedCoordinator, component: str) -> None:
        self.sources = (component,)
        self._coordinator = coordinator
        self._component = component

    def plan(self, txid: int, previous: Any, *, replay: bool = False, upto: Clock | None = None) -> Any:
        if not replay and not self._coordinator.is_ready():
            return NOT_READY
        where = f"spout {self._component!r}, txid {txid}"
        count = partition_count(self._coordinator.num_partitions(), where)
        before = 0 if previous is None else previous["count"]
        if count < before:
            missing = _partitions(range(count, before))
            raise SpoutError(
                f"{where}: {missing} disappeared: num_partitions() gave {count}, expected at least {before}; a "
                "transactional spout needs all its partitions: restore them, or use an opaque spout"
            )
        return {"count": count, "parts": None}

    def skip(self, previous: Any) -> Any:
        return {"count": 0 if previous is None else previous["count"], "parts": None, "skipped": True}

    def close(self) -> None:
        self._coordinator.close()


class _OpaquePlanner(_TaskPlanner):
    opaque = True

    def __init__(self, coordinator: OpaquePartitionedCoordinator, component: str) -> None:
        self.sources = (component,)
        self._coordinator = coordinator
        self._away: set[str] = set()
        self._notices = Notices(component, log)

    def plan(self, txid: int, previous: Any, *, replay: bool = False, upto: Clock | None = None) -> Any:
        ready = replay or self._coordinator.is_ready()
        return {"parts": None} if ready else NOT_READY

    def skip(self, previous: Any) -> Any:
        return {"parts": None, "skipped": True}

    def finish(self, document: Any, parts: Parts) -> Any:
        if not document.get("skipped"):
            self._look_for_missing(parts)
        return super().finish(document, parts)

    def _look_for_missing(self, parts: Parts) -> None:
        away = {partition for partition, part in parts.items() if part.get("away")}
        newly_away, back = sorted(away - self._away, key=int), sorted(self._away - away, key=int)
        self._away = away
        if newly_away:
            kept = {partition: parts[partition]["kept"] for partition in newly_away}
            self._notices.say(f"away: {_partitions(newly_away)}; positions are kept ({kept}), the others continue")
        if back:
            self._notices.say(f"back: {_partitions(back)}")

    def notices(self) -> list[str]:
        return self._notices.take()

    def close(self) -> None:
        self._coordinator.close()


class _DriverPlannedTask(SpoutTask):
    def __init__(self, emitter: Emitter, context: TaskContext) -> None:
        self._emitter = emitter
        self._context = context

    def run(self, attempt: TransactionAttempt, document: Any, carried: Parts, collector: Collector) -> Parts:
        self._context.attempt = attempt
        if document.get("skipped"):
            return {}
        if not isinstance(self._emitter, CommitterEmitter):
            self._emitter.emit_batch(attempt, _meta(document), collector)
            return {}
        emitted = self._emitter.emit_batch(attempt, _meta(document), collector)
        where = f"{_what(self._context)}, returned by emit_batch of task {self._context.task}"
        return {str(self._context.task): storable(emitted, where)}

    def cleanup_before(self, txid: int) -> None:
        self._emitter.cleanup_before(txid)

    def close(self) -> None:
        self._emitter.close()


class _Committer(SpoutCommitter):
    def __init__(self, spout: CommitterTransactionalSpout, context: TaskContext) -> None:
        self._spout = spout
        tasks = range(context.parallelism)
        self._contexts = [replace(context, task=task, settings=copied(context.settings)) for task in tasks]
        self._emitters: dict[int, CommitterEmitter] = {}

    def commit(self, attempt: TransactionAttempt, stamp: int, parts: Parts) -> None:
        for task, context in enumerate(self._contexts):
            context.attempt, context.stamp = attempt, stamp
            try:
                self._emitter(task).commit(attempt, copied(parts.get(str(task))))
            except (Exception, SystemExit) as error:
                raise SpoutCommitError(context.component, task, error) from error

    def _emitter(self, task: int) -> CommitterEmitter:
        # Created on the commit thread: what an emitter opens (a database, say) may be bound to its thread.
        if task not in self._emitters:
            self._emitters[task] = self._spout.emitter(self._contexts[task])
        return self._emitters[task]

    def close(self) -> None:
        for emitter in self._emitters.values():
            try:
                emitter.close()
            except Exception:
                log.exception("spout %s: close() of an emitter failed", self._contexts[0].component)
        self._emitters.clear()


class _PartitionedTask(SpoutTask):
    def __init__(self, emitter: PartitionedEmitter, context: TaskContext) -> None:
        self._emitter = emitter
        self._context = context

    def run(self, attempt: TransactionAttempt, document: Any, carried: Parts, collector: Collector) -> Parts:
        self._context.attempt = attempt
        if document["parts"] is not None:
            parts = self._replay(attempt, document, collector)
        elif document.get("skipped"):
            parts = _kept(self._context, carried)
        else:
            parts = _emit_new(self._context, carried, document["count"], collector, self._new(attempt))
        carried.update(parts)
        return parts

    def _new(self, attempt: TransactionAttempt) -> Any:
        return lambda watched, partition, last: self._emitter.emit_partition_batch_new(
            attempt, watched, partition, last
        )

    def _replay(self, attempt: TransactionAttempt, document: Any, collector: Collector) -> Parts:
        # Once the extents are known, a partition without a batch emits nothing on any replay: its new data went into
        # a later txid (as in Storm's PartitionedTransactionalSpoutExecutor).
        mine = _mine(document["parts"], self._context.task, self._context.parallelism)
        for partition, part in mine.items():
            if "batch" in part:
                collector.partition(int(partition))
                collector.origin(partial(_place, partition))
                self._emitter.emit_partition_batch(attempt, collector, int(partition), copied(part["batch"]))
        return mine

    def close(self) -> None:
        self._emitter.close()


class _OpaqueTask(SpoutTask):
    def __init__(self, emitter: OpaquePartitionedEmitter, context: TaskContext) -> None:
        self._emitter = emitter
        self._context = context

    def run(self, attempt: TransactionAttempt, document: Any, carried: Parts, collector: Collector) -> Parts:
        self._context.attempt = attempt
        if document.get("skipped"):
            parts = _kept(self._context, carried)
        else:
            count = partition_count(self._emitter.num_partitions(), _what(self._context))
            parts = _emit_new(self._context, carried, count, collector, self._new(attempt))
        carried.update(parts)
        return parts

    def _new(self, attempt: TransactionAttempt) -> Any:
        return lambda watched, partition, last: self._emitter.emit_partition_batch(attempt, watched, partition, last)

    def close(self) -> None:
        self._emitter.close()


def _emit_new(context: TaskContext, carried: Parts, count: int, collector: Collector, emit: Any) -> Parts:
    """Emit new batches of this task's partitions; unavailable and empty partitions keep their positions."""
    parts = {
        partition: part if int(partition) < count else {**part, "away": True}
        for partition, part in _kept(context, carried).items()
    }
    for partition in range(context.task, count, context.parallelism):
        last = _position(carried.get(str(partition)))
        collector.partition(partition)
        watched = WatchedCollector(collector)
        collector.origin(partial(_place, partition))
        meta = emit(watched, partition, copied(last))
        if meta is None and watched.emitted:
            msg = f"{_what(context, partition)}: tuples were emitted but no metadata returned, so it is unknown "
            raise MetadataError(msg + "where the next batch begins; return the metadata of what was emitted")
        parts[str(partition)] = {"kept": last} if meta is None else {"batch": storable(meta, _what(context, partition))}
    return parts


def _place(partition: int | str, row: int) -> dict[str, int]:
    return {"partition": int(partition), "row": row}


def _kept(context: TaskContext, carried: Parts) -> Parts:
    return _kept_of(carried, context.task, context.parallelism)


def _kept_of(carried: Parts, task: int, parallelism: int) -> Parts:
    return {partition: {"kept": _position(part)} for partition, part in _mine(carried, task, parallelism).items()}


def parts_without(document: Any, task: int, parallelism: int) -> dict[str, Any] | None:
    """Return the parts of emitter `task` as if it had emitted its share of the batch of `document`, without emitting.

    Return an empty dict for spouts planned in the driver; None if the end of the batch is known only after emitting it.
    """
    if "sources" in document:  # a composite spout: the keys are prefixed with the name of their source
        parts = {name: parts_without(own, task, parallelism) for name, own in document["sources"].items()}
        known = {name: own for name, own in parts.items() if own is not None}
        if len(known) < len(parts):
            return None
        return {f"{name}/{key}": part for name, own in known.items() for key, part in own.items()}
    if "parts" not in document:
        return {}
    return None if document["parts"] is None else _mine(document["parts"], task, parallelism)


def skipped_parts(document: Any, carried: Parts, task: int, parallelism: int) -> dict[str, Any]:
    """Return the parts of emitter `task` in a txid in which no source emits: its partitions keep their positions.

    Args:
        document: the spout document.
        carried: position of each partition after the txid before.
        task: index of the task.
        parallelism: number of tasks of the spout.
    """
    if "sources" not in document:
        return _kept_of(carried, task, parallelism) if "parts" in document else {}
    parts: dict[str, Any] = {}
    for name, own in document["sources"].items():
        known = {key.removeprefix(f"{name}/"): part for key, part in carried.items() if key.startswith(f"{name}/")}
        parts |= {f"{name}/{key}": part for key, part in skipped_parts(own, known, task, parallelism).items()}
    return parts


def metadata_of(document: Any, parts: dict[str, Any], task: int, parallelism: int) -> dict[str, Any]:
    """Return the share of emitter `task` in the batch of `document`, as JSON values."""
    share = {"parts": parts} if "parts" in document else document
    return {**share, "task": task, "of": parallelism}


def _mine(parts: Parts, task: int, parallelism: int) -> Parts:
    return {partition: part for partition, part in parts.items() if int(partition) % parallelism == task}


def _meta(document: Any) -> Any:
    """Return a copy, which user code may modify, of the coordinator's metadata in `document`; None if that is None."""
    return None if document is None else copied(document["meta"])


def _overridden(coordinator: SpoutCoordinator, method: Any) -> bool:
    """Return whether `coordinator` overrides `method`; if not, the call and the copies for it are skipped."""
    return getattr(getattr(coordinator, method.__name__, None), "__func__", None) is not method


def _position(part: Any) -> Any:
    return None if part is None else part.get("batch", part.get("kept"))


def _sorted(parts: Parts) -> Parts:
    return dict(sorted(parts.items(), key=lambda item: int(item[0])))


def _partitions(numbers: Iterable[object]) -> str:
    names = [str(number) for number in numbers]
    return f"partition{'s' if len(names) > 1 else ''} {', '.join(names)}"


def _what(context: TaskContext, partition: int | None = None) -> str:
    where = "" if partition is None else f", partition {partition}"
    return f"spout {context.component!r}{where}, txid {context.attempt and context.attempt.txid}"


def _not_a_spout(spout: object, context: TaskContext) -> SpoutError:
    return SpoutError(
        f"spout {context.component!r} is a {type(spout).__name__}; derive it from TransactionalSpout, "
        "PartitionedTransactionalSpout or OpaquePartitionedTransactionalSpout"
    )
