"""`foreach_batch` and `write_stream`: a streaming query hands its batches over to a topology, one at a time."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from txstorm.books.data_directory import default_directory, was_run
from txstorm.books.origin import origin_of
from txstorm.clients.spark import active_session, is_connect
from txstorm.clients.spark_frames import frame_types
from txstorm.clients.spark_query import CONNECT, StreamingQuery, read_to_end, stop_queries
from txstorm.ddl import columns_fault
from txstorm.engine.spark import SparkEngine
from txstorm.errors import HeldError, InputError, KilledError, SettingError, SpoutError, StoppedError
from txstorm.lanes import THREADS
from txstorm.ledger.open import local_directory
from txstorm.monitor.progress import Listener
from txstorm.results.views import read_directory_history
from txstorm.runtime.handle import RunHandle
from txstorm.runtime.opening import RunOptions
from txstorm.runtime.run import launch
from txstorm.spouts.frames import StreamBatch, StreamSpout
from txstorm.streaming.batches import Verdict, check_older, judge
from txstorm.topology.graph import Topology
from txstorm.user_code import described

log = logging.getLogger(__name__)
LOOK = 0.25
"""Interval, in seconds, at which it is seen that a query has ended."""
_functions: dict[Path, BatchFunction] = {}
_lock = threading.Lock()


def foreach_batch(
    topology: Topology,
    *,
    data_dir: str | Path | None = None,
    ledger: str | None = None,
    settings: Mapping[str, Any] | None = None,
    listeners: Sequence[Listener] = (),
    adopt: bool = False,
) -> BatchFunction:
    """Start a topology that a streaming query feeds; return the function for Spark's ``foreachBatch``.

    Each batch of the query is a transaction: the function returns when it is complete, and raises if it is not decided.
    A batch that comes again after it was decided has no effect. The run ends, and gives its lease back, when the query
    ends; if the query is started again with the function, the run is, too.

    Args:
        topology: a built topology with a `StreamSpout`.
        data_dir: directory of the tables and the ledger; by default ``./txstorm-data/<topology id>``.
        ledger: see `txstorm.run`.
        settings: overrides for the topology's settings.
        listeners: called with a `TransactionProgress` after every commit.
        adopt: take the first batch of another query than the one before as the next one; that query has to begin where
            the one before ended.

    Raises:
        InputError: the topology, a setting or the directory is invalid, or there is no classic Spark session.
        StateError: a declaration differs from its table.
        HeldError: another process, or another query of this one, runs this directory.
    """
    function = BatchFunction(_fed(topology, settings), _directory(data_dir, topology), ledger, listeners, adopt=adopt)
    with _lock:
        before = _functions.get(function.data_dir)
        if before is not None and before.is_busy:
            msg = f"data directory {function.data_dir} is fed by another streaming query of this process; stop it first"
            raise HeldError(msg)
        function.start()
        _functions[function.data_dir] = function
    return function


def write_stream(stream: Any, target: Topology | BatchFunction, **options: Any) -> Any:
    """Return Spark's ``DataStreamWriter`` for a query that feeds a topology: set a trigger, and call ``start()``.

    The query has the name of the topology, and its checkpoint in ``checkpoint`` of the data directory. A query that was
    started by this function for the same directory is stopped first, so that a notebook cell can be run repeatedly.

    Args:
        stream: a streaming DataFrame.
        target: a built topology, or the function that `foreach_batch` returned.
        options: those of `foreach_batch`, with a topology.

    Raises:
        InputError: `stream` is no streaming DataFrame, or of Spark Connect; and as `foreach_batch`.
    """
    _check_stream(stream)
    topology = target.topology if isinstance(target, BatchFunction) else _built(target)
    data_dir = target.data_dir if isinstance(target, BatchFunction) else _directory(options.get("data_dir"), topology)
    checkpoint = str(data_dir / "checkpoint")
    stop_queries(stream.sparkSession, checkpoint)
    if isinstance(target, BatchFunction):
        if options:
            msg = f"write_stream: {sorted(options)} belong to foreach_batch, which made the function; pass them there"
            raise SettingError(msg)
        function = target
    else:
        function = foreach_batch(target, **options)
    function.check_columns(stream)
    return stream.writeStream.queryName(topology.id).option("checkpointLocation", checkpoint).foreachBatch(function)


class BatchFunction:
    """The function of one topology for Spark's ``foreachBatch``; made by `foreach_batch`.

    Attributes:
        topology: the topology.
        data_dir: directory of its tables and its ledger.
        handle: the handle of the present run, or of the last one.
        skipped: number of batches that came again although they were decided.
    """

    def __init__(
        self,
        topology: Topology,
        data_dir: Path,
        ledger: str | None,
        listeners: Sequence[Listener],
        *,
        adopt: bool,
    ) -> None:
        self.topology, self.data_dir = topology, data_dir
        self.skipped = 0
        self.handle: RunHandle
        self._ledger, self._listeners, self._adopt = ledger, listeners, adopt
        self._made = THREADS.seconds()
        self._query: StreamingQuery | None = None
        self._calls = threading.Lock()

    def start(self) -> None:
        """Start a run of the topology; called by `foreach_batch`."""
        session = active_session()
        options = RunOptions(ledger=self._ledger, origin=origin_of(self.topology, None))
        self.handle = launch(self.topology, SparkEngine(session, jobs=1), self.data_dir, options, self._listeners)

    @property
    def is_busy(self) -> bool:
        """Whether a query that is active has called the function."""
        return self._query is not None and self._query.is_active

    def __call__(self, frame: Any, batch_id: int) -> None:
        """Process one batch of the query that calls, and return when its transaction is complete.

        Raises:
            StoppedError: the query or the run was stopped before the batch was decided; it comes again.
            KilledError: the topology was ended with ``txstorm kill``.
            SpoutError: the batch does not follow those before it, or is not the same as when it came first.
        """
        query = StreamingQuery(frame)
        if not self._calls.acquire(blocking=False):
            raise HeldError(
                f"data directory {self.data_dir}: another streaming query is handing over a batch; give it a directory"
            )
        try:
            self._follow(query, frame)
            early = self._adopt and query.planned_at(batch_id) < self._made
            self._take(query, StreamBatch(query.id, batch_id, query.offsets(batch_id), frame, early))
        finally:
            self._calls.release()

    def check_columns(self, frame: Any) -> None:
        """Raise `SpoutError` unless a DataFrame has the columns of the `StreamSpout`."""
        expected = {name: column.spark for name, column in self._spout.columns.items()}
        fault = columns_fault(expected, frame_types(frame))
        if fault:
            raise SpoutError(f"the columns of the stream are not those of the StreamSpout: {fault}")

    @property
    def _spout(self) -> StreamSpout:
        spout: StreamSpout = self.topology.spout.object
        return spout

    def _follow(self, query: StreamingQuery, frame: Any) -> None:
        """Let the run live as long as the present run of `query`."""
        if _functions.get(self.data_dir) is not self:
            msg = f"data directory {self.data_dir}: a later call of foreach_batch has taken the place of this function"
            raise HeldError(msg)
        before = self._query
        if before is not None and before.run == query.run:
            return
        if before is not None and before.is_active:
            msg = f"data directory {self.data_dir} is fed by another streaming query; stop it, or give this a directory"
            raise HeldError(msg)
        query.check()
        _check_checkpoint(query.checkpoint or "", self.data_dir)
        self.check_columns(frame)
        if before is not None:
            self.handle.stop()  # its watcher may not have seen yet that its query has ended
        if not self.handle.isActive:
            self.start()
        self._query = query
        THREADS.start(partial(self._watch, query, self.handle), "txstorm-query")

    def _watch(self, query: StreamingQuery, handle: RunHandle) -> None:
        """Stop the run as soon as the query has ended, however it has."""
        while handle.isActive:
            try:
                active = query.is_active
            except Exception:  # noqa: BLE001 - py4j raises anything once the JVM has ended
                active = False
            if not active:
                handle.stop()
                return
            THREADS.sleep(LOOK)

    def _take(self, query: StreamingQuery, batch: StreamBatch) -> None:
        offers = self._spout.offers
        txid, committed, undecided = self.handle.standing()
        verdict = judge(batch, committed, undecided, adopt=self._adopt)
        if verdict is Verdict.OLDER:
            check_older(batch, _recorded(self.data_dir, batch))
        if verdict in (Verdict.OLDER, Verdict.DECIDED):
            self.skipped += 1
            log.info("batch %s of query %s came again; its transaction is decided", batch.number, batch.query)
            if query.is_stateful:
                read_to_end(batch.frame)
            return
        if verdict is Verdict.ADOPTED:
            self.handle.forget_plan(txid + 1)
        offers.batch = batch
        try:
            with suppress(StoppedError):
                self.handle.processAllAvailable()
                return
        finally:
            offers.batch = None
        self._check_decided(batch)

    def _check_decided(self, batch: StreamBatch) -> None:
        """Return if the run, which was stopped, has decided `batch`; else raise why it has not."""
        self.handle.awaitTermination()
        _, committed, _ = self.handle.standing()
        if batch.is_of(committed):
            return
        if self.handle.killed is not None:
            msg = f"topology {self.topology.id} was killed by {self.handle.killed}; batch {batch.number} is not decided"
            raise KilledError(msg)
        msg = f"topology {self.topology.id} was stopped; batch {batch.number} is not decided, and comes again"
        raise StoppedError(msg)


def _recorded(data_dir: Path, batch: StreamBatch) -> Any:
    """Return the metadata that the history has for a batch of the same query and number."""
    for text in reversed(read_directory_history(data_dir)["extents"].to_pylist()):
        found = json.loads(text).get("meta")
        if batch.is_of(found):
            return found
    return None


def _fed(topology: Topology, settings: Mapping[str, Any] | None) -> Topology:
    """Return the topology with its settings, of which one transaction at a time is one."""
    if not isinstance(_built(topology).spout.object, StreamSpout):
        raise SpoutError(
            f"topology {topology.id}: its spout is {described(topology.spout.object)}, expected a StreamSpout, whose "
            "batches a streaming query hands over; start any other topology with run"
        )
    if settings:
        topology = topology.with_settings(settings)
    topology = topology.completed()
    pending = topology.settings.max_spout_pending
    if pending not in ("auto", 1):
        msg = f"max_spout_pending is {pending}, expected 1: a streaming query hands over one batch at a time"
        raise SettingError(msg)
    if topology.external:
        raise InputError(
            f"topology {topology.id} has a committer with effects outside its tables, which a batch that comes again "
            "with other rows would repeat; write to states, sinks, maps or outlets"
        )
    spout, *others = topology.components
    topology = replace(topology, components=(replace(spout, object=spout.object.fed()), *others))
    return topology.with_settings({"max_spout_pending": 1})


def _built(topology: Any) -> Topology:
    if not isinstance(topology, Topology):
        raise InputError(f"expected a built topology, got {described(topology)}; call build_topology() on the builder")
    return topology


def _directory(data_dir: str | Path | None, topology: Topology) -> Path:
    # Resolved: Spark takes parts such as ".." out of the checkpoint's path, and one directory has one function.
    return local_directory(data_dir or default_directory(topology.id)).resolve()


def _check_stream(stream: Any) -> None:
    session = getattr(stream, "sparkSession", None)
    if session is None or not hasattr(stream, "isStreaming"):
        raise InputError(f"write_stream takes a streaming DataFrame (spark.readStream…), got {described(stream)}")
    if is_connect(session):
        raise InputError(CONNECT)
    if not stream.isStreaming:
        raise InputError("write_stream takes a streaming DataFrame, got a batch one; read it with spark.readStream")


def _check_checkpoint(checkpoint: str, data_dir: Path) -> None:
    """Raise `InputError` if a checkpoint is in the directory of another topology."""
    if not checkpoint.startswith("file:"):
        return
    place = Path(checkpoint.removeprefix("file:").replace("//", "/"))
    other = next((parent for parent in place.parents if parent.resolve() != data_dir and was_run(parent)), None)
    if other is not None:
        msg = f"the checkpoint {place} is in the data directory of another topology, {other}; choose another place"
        raise InputError(msg)
