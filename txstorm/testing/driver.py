"""Test driver: runs a topology step by step, under the control of a test.

It is one module, since a test has one object for all that it does and sees.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from datetime import datetime
from pathlib import Path
from typing import Any

from txstorm.api.attempt import TransactionAttempt
from txstorm.api.names import DEFAULT_STREAM, near
from txstorm.clocks import Clock
from txstorm.engine.local import LocalEngine
from txstorm.engine.port import ErrorRow, Pack, Processed
from txstorm.errors import InputError
from txstorm.lanes import Inline
from txstorm.ledger.open import local_directory
from txstorm.monitor.progress import Monitor
from txstorm.results.views import SinkView, StateView, read_clock, read_directory_history
from txstorm.results.windowed_components import check_component, component_windows
from txstorm.runtime.opening import RunOptions, open_session
from txstorm.runtime.session import Session
from txstorm.testing.clock import ManualClock
from txstorm.testing.emissions import Emission, Emissions
from txstorm.testing.feed import FeedSpout
from txstorm.testing.stepping import ONE_AT_A_TIME, Stepper
from txstorm.testing.windows import LateRow, late_rows, watermark
from txstorm.topology.graph import Topology
from txstorm.user_code import described

PROCESSING, COMMITTING = "processing", "committing"


class InlineEngine(LocalEngine):
    """Local engine that runs on the caller's thread, so that a breakpoint in a bolt stops the test itself.

    Args:
        emissions: receives the attempts and the tuples emitted.
    """

    name = "inline"

    def __init__(self, emissions: Emissions) -> None:
        super().__init__(emissions.observe)
        self._emissions = emissions

    def submit(self, pack: Pack) -> Future[list[Processed]]:
        """Process `pack` at once; the future is done on return."""
        self._emissions.attempts += [txid_input.attempt for txid_input in pack.inputs]
        future: Future[list[Processed]] = Future()
        try:
            future.set_result(self._run(pack))
        except Exception as error:  # noqa: BLE001 - raised by the future
            future.set_exception(error)
        return future

    def _run(self, pack: Pack) -> list[Processed]:
        assert self._program is not None
        tasks = self._program.components[self._program.spout].parallelism
        outcomes = self.run(pack)
        self._emissions.partial |= {outcome.attempt for outcome in outcomes if outcome.emitters < tasks}
        return outcomes


class TopologyTestDriver:
    """Driver of a topology under the control of a test, which decides when each phase of each transaction ends.

    Coordinator, plan, spout, bolts, ledger and tables are the real ones, but there are no threads and no Spark, and
    time moves only by `advance`. A transaction that can start is processed at once, so that its emitted tuples can be
    inspected, but remains *processing* until `ack`. When its turn to commit comes, its committers finish at once, and
    it remains *committing* until `ack` publishes it. `fail` fails its current phase: it and all later transactions are
    replayed, as in Storm.

    An exception in user code is handled according to the topology's settings; if it ends the topology, the call that
    ran the code raises it. Earlier transactions can still be acked, as they can still commit in a run.

    Args:
        topology: the built topology.
        data_dir: the data directory, new or of the same topology; None: a temporary one, deleted by `close`.
        pending: number of transactions in flight; None: the setting of the topology, or 1 if that is ``auto``.
        clock: the clock; None: a new `ManualClock`.
        settings: settings that override those of the topology; packs and commit groups always hold one transaction.

    Raises:
        InputError: the topology, the settings, the source or the directory is unusable.
        HeldError: another run holds the directory.
    """

    def __init__(
        self,
        topology: Topology,
        *,
        data_dir: str | Path | None = None,
        pending: int | None = None,
        clock: ManualClock | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        if not isinstance(topology, Topology):
            kind = described(topology)
            msg = f"TopologyTestDriver takes a built topology, got {kind}; call build_topology() on the builder"
            raise InputError(msg)
        self._pending = pending
        self._settings = dict(settings or {})
        self._temporary = tempfile.mkdtemp(prefix="txstorm-test-") if data_dir is None else None
        self.data_dir = local_directory(self._temporary or data_dir or "").absolute()
        self.clock = clock or ManualClock()
        self.topology = topology
        self._emissions = Emissions()
        self._session: Session | None = None
        self._dropped = 0
        try:
            self._open(topology)
        except BaseException:
            self.close()
            raise

    def _open(self, topology: Topology) -> None:
        self.topology = self._prepared(topology)
        lanes = Inline(self.clock.now, self.clock.monotonic)
        options = RunOptions(lanes=lanes, observe=self._emissions.observe, accept_clock=True)
        engine, monitor = InlineEngine(self._emissions), Monitor()
        session = open_session(self.topology, engine, self.data_dir, options, monitor, lambda _: False)
        self._session = session
        self._stepper = Stepper(session, monitor)
        engine.start(session.program)
        self._stepper.open()

    def _prepared(self, topology: Topology) -> Topology:
        chosen = topology.completed().with_settings({**self._settings, **ONE_AT_A_TIME})
        pending = self._pending
        if pending is None:
            pending = 1 if chosen.settings.max_spout_pending == "auto" else chosen.settings.max_spout_pending
        return chosen.with_settings({"max_spout_pending": pending})

    # -- actions of the test ----------------------------------------------------------------------------------

    def ack(self, which: int | TransactionAttempt) -> None:
        """End the current phase of a transaction: a processing one becomes processed, a committing one is published.

        Everything that this makes possible, such as the next commit or new transactions, then runs at once.

        Args:
            which: a txid, or an attempt; an ack of an attempt that is not the current one is ignored.

        Raises:
            InputError: no phase of this txid waits for an ack, or the driver is closed.
            TopologyFailed: user code that ran as a consequence has failed.
        """
        self._running()
        self._stepper.ack(which if isinstance(which, TransactionAttempt) else self._waiting(which))

    def fail(self, which: int | TransactionAttempt, reason: str = "failed by the test") -> None:
        """Fail the current phase of a transaction: it and all later ones are replayed, with new attempts.

        The first replay of a txid is immediate; after further failures the ``retry_backoff`` of the topology has to
        pass first (see `advance`).

        Args:
            which: a txid, or an attempt; a failure of an attempt that is not the current one is ignored.
            reason: the cause to record.

        Raises:
            InputError: this txid is not active, or the driver is closed.
            TopologyFailed: user code that ran as a consequence has failed, or the retry limit is reached.
        """
        self._running()
        row = ErrorRow("the test", 0, "failed", "FailedException", reason, "", "")
        self._stepper.fail(which if isinstance(which, TransactionAttempt) else self.attempt(which), row)

    def lose(self, processor: str) -> None:
        """Lose a processor, as if the worker that runs it had died: all transactions in flight are replayed at once.

        Args:
            processor: an instance of a component, ``COMPONENT-INDEX``, such as ``counts-0``.

        Raises:
            InputError: there is no such processor, or the driver is closed.
            TopologyFailed: user code that ran as a consequence has failed.
        """
        topology = self._running().topology
        known = [f"{one.id}-{index}" for one in topology.components for index in range(one.parallelism)]
        if processor not in known:
            hint = near(str(processor), known)
            raise InputError(f"processor {processor!r}: expected COMPONENT-INDEX{hint}; there are {', '.join(known)}")
        self._stepper.lose(processor)

    def next_tuple(self) -> None:
        """Poll the source, as a run does continuously, for example after adding tuples to it."""
        self._running()
        self._stepper.wake()

    def source_end(self) -> Any:
        """Return the current end of the source, to be passed to `reached`; None if the spout cannot determine it."""
        return self._running().planning.planner.latest()

    def reached(self, end: Any) -> bool:
        """Return whether everything up to `end`, a result of `source_end`, is committed."""
        planning = self._running().planning
        return planning.planner.reached(planning.document(self.committed), end)

    def advance(self, seconds: float) -> None:
        """Advance the clock by `seconds`: end back-offs, fail phases that exceed ``batch_timeout``, poll the source.

        Timers run, unless an opaque feed that a restart has dropped is to be fed again first.
        """
        self._running()
        self.clock.advance(seconds)
        self._stepper.pass_time(timers=self.committed + len(self.active) >= self._dropped)

    def feed(
        self,
        rows: Mapping[str, Sequence[Sequence[Any]]],
        at: datetime | int | None = None,
        caught_up: Collection[str] = (),
    ) -> int:
        """Plan and process one transaction with exactly these tuples, in this order; return its txid.

        The topology's spout must be a `FeedSpout`. After a failure, or a `restart` before the decision, a transactional
        feed repeats its tuples at once; for an opaque one, the next call is for the lowest txid that was dropped.

        Args:
            rows: stream → its tuples.
            at: the time to which the clock is moved first: an aware datetime, or milliseconds since 1970.
            caught_up: streams that are read to their end.

        Raises:
            InputError: too many transactions are in flight, `at` is in the past, or a stream or tuple does not fit.
            TopologyFailed: user code has failed.
        """
        spout = self.topology.spout.object
        if not isinstance(spout, FeedSpout):
            kind = type(spout).__name__
            msg = f"{self.topology.id}: feed needs a FeedSpout, got {kind}; add the data to its source instead"
            raise InputError(msg)
        txid = self._next(at)
        spout.put(rows, caught_up)
        try:
            self._stepper.wake()
        finally:
            spout.withdraw()
        return txid

    def heartbeat(self, at: datetime | int | None = None) -> int:
        """Plan and process one heartbeat; return its txid. Arguments and errors are those of `feed`."""
        txid = self._next(at)
        self._stepper.plan_system("heartbeat")
        return txid

    def end_of_input(self, at: datetime | int | None = None) -> int:
        """Plan and process the end-of-input transaction; return its txid. Arguments and errors are those of `feed`.

        If it leaves ends of windows waiting, as `max_ends_per_txid` allows no more, the end of input goes on: call it
        again, after the commit.
        """
        txid = self._next(at, ends=True)
        self._stepper.plan_system("end")
        return txid

    def _next(self, at: datetime | int | None, *, ends: bool = False) -> int:
        """Move the clock to `at`, and return the txid that is planned next."""
        session = self._running()
        flying, pending = len(self.active), session.machine_config().max_pending
        if flying >= pending:
            raise InputError(
                f"{self.topology.id}: {flying} transactions are in flight ({self._words()}), expected fewer than "
                f"pending={pending}; ack, fail or commit one first, or give the driver a higher pending"
            )
        before = self.committed + flying
        if session.planning.ended(before) or (session.planning.kind(before) == "end" and not ends):
            msg = f"{self.topology.id}: the input ended with txid {self.committed + flying}; nothing can follow it"
            raise InputError(msg)
        if at is not None:
            self.clock.move_to(at)
        return self.committed + flying + 1

    def commit(self, upto: int | None = None) -> None:
        """Ack both phases of the next transaction, or of all transactions up to txid `upto`.

        Raises:
            InputError: one of them is not active, because the source has no data or a back-off has not elapsed.
            TopologyFailed: user code has failed.
        """
        last = self.committed + 1 if upto is None else upto
        while self.committed < last:
            self.ack(self.committed + 1)

    def want(self, clock: Mapping[str, int], name: str | None = None) -> None:
        """Ask for a snapshot at `clock`, which no transaction passes; raises the errors of `RunHandle.want_snapshot`.

        When the transaction with this clock is committed, the snapshot is complete: see
        `txstorm.operations.savepoints.list_snapshots`. `advance` gives it up after ``snapshot_wait`` seconds.
        """
        self._running()
        self._stepper.want(Clock(clock), name)

    def restart(self, topology: Topology | None = None) -> None:
        """Stop as if the process had been killed, and restart on the same directory.

        Args:
            topology: the topology to start, perhaps with other code, parallelism or settings; None: the same one.
        """
        session = self._session  # None after a restart that failed
        fed = [] if session is None else [txid for txid in self.active if session.planning.kind(txid) == "data"]
        self._release()
        before, following = self.topology.spout.object, (topology or self.topology).spout.object
        if isinstance(before, FeedSpout) and isinstance(following, FeedSpout):
            following.adopt(before)
            self._dropped = max([self._dropped, *fed]) if following.opaque else 0
        self._open(topology or self.topology)

    # -- observations of the test -------------------------------------------------------------------------------------

    def emitted(
        self,
        component: str,
        txid: int | None = None,
        attempt: TransactionAttempt | int | None = None,
        stream: str = DEFAULT_STREAM,
    ) -> list[tuple[Any, ...]]:
        """Return the tuples that `component` emitted, in order, even on streams without subscribers.

        Args:
            component: a spout or bolt.
            txid: only tuples of this transaction; None: of all transactions.
            attempt: only tuples of this attempt or attempt id; None: of the last attempt of each transaction.
            stream: the stream.

        Raises:
            InputError: the component or stream does not exist.
        """
        self._check_stream(component, stream)
        if isinstance(attempt, TransactionAttempt):
            attempt = attempt.attempt_id
        last = self._emissions.last_attempts()
        return [
            one.values
            for one in self._emissions.of(component, stream)
            if txid in (None, one.attempt.txid)
            and one.attempt.attempt_id == (last[one.attempt.txid] if attempt is None else attempt)
        ]

    def watermark(self, component: str) -> datetime | None:
        """Return the watermark of a windowed bolt after the last committed transaction.

        None while it is undefined; `datetime.max`, in UTC, at the end of input. In processing time, it is the stamp.

        Raises:
            InputError: the component does not exist, or has no windows.
        """
        return watermark(self.topology, self.data_dir, component, self.committed)

    def late(self, component: str) -> list[LateRow]:
        """Return the late tuples of a windowed bolt in committed transactions.

        Each is (txid, (component, stream), timestamp, watermark, values), with times as datetimes in UTC.

        Raises:
            InputError: the component does not exist, or has no windows.
        """
        return late_rows(self.topology, self._emissions, component, self.committed)

    def buffered(
        self, component: str, end: datetime | None = None, key: Sequence[Any] | None = None
    ) -> list[dict[str, Any]]:
        """Return the tuples that a windowed bolt buffers after the last committed transaction, by unit and time.

        Each is a dict with ``key``, ``task``, ``time``, ``input``, ``txid`` and ``values`` (field → value).

        Args:
            component: the bolt.
            end: only tuples of the windows that end then; None: all.
            key: only those of this key, a list with a value for each of its fields; None: of all.

        Raises:
            InputError: the component does not exist or buffers no tuples, or no window ends at `end`.
        """
        watermark(self.topology, self.data_dir, component, 0)
        check_component(self.data_dir, component)
        return component_windows(self.data_dir, component).buffered_tuples(end, key)

    @property
    def emissions(self) -> list[Emission]:
        """All emitted tuples of all components and attempts, oldest first."""
        return list(self._emissions.log)

    def attempt(self, txid: int) -> TransactionAttempt:
        """Return the current attempt at `txid`; raise `InputError` if it is not active."""
        entry = self._stepper.active.get(txid)
        if entry is None:
            msg = f"txid {txid}: expected an active transaction ({self._words()}), got one that is {self.status(txid)}"
            raise InputError(msg)
        return TransactionAttempt(txid, entry[0])

    def attempts(self, txid: int) -> list[TransactionAttempt]:
        """Return all attempts at `txid` so far, oldest first."""
        return self._emissions.of_txid(txid)

    def is_whole(self, attempt: TransactionAttempt) -> bool:
        """Return whether all tasks of the spout have emitted their share in `attempt`; False if one of them failed."""
        return attempt not in self._emissions.partial

    def status(self, txid: int) -> str:
        """Return a txid's status: ``processing``, ``processed``, ``committing``, ``committed`` or ``not started``."""
        entry = self._stepper.active.get(txid)
        if entry is not None:
            return entry[1].value
        return "committed" if 1 <= txid <= self.committed else "not started"

    @property
    def active(self) -> dict[int, str]:
        """The transactions in flight: txid → status."""
        return {txid: status.value for txid, (_, status) in self._stepper.active.items()}

    @property
    def committed(self) -> int:
        """The txid of the last committed transaction; 0 before the first."""
        return self._stepper.committed

    def state(self, name: str) -> StateView:
        """Return a view of the state `name` as of the last committed transaction."""
        return StateView(self.data_dir, name)

    def sink(self, name: str) -> SinkView:
        """Return a view of the rows of the sink `name`."""
        return SinkView(self.data_dir, name)

    def source_clock(self, txid: int | None = None) -> Clock | None:
        """Return the source's clock of `txid`, by default of the last committed one; None if it has no clocks."""
        return read_clock(self.data_dir, txid)

    def history(self) -> Any:
        """Return the history, one row per committed txid, as a `pyarrow.Table`."""
        return read_directory_history(self.data_dir)

    # -- the end ------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Release all resources; transactions that were not acked are dropped. May be called twice."""
        self._release()
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)

    def _release(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            self._stepper.close()
            session.release()

    def __enter__(self) -> TopologyTestDriver:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<TopologyTestDriver {self.topology.id}: committed txid {self.committed}, {self._words()}>"

    # -- help -----------------------------------------------------------------------------------------------------

    def _running(self) -> Session:
        if self._session is None:
            msg = f"{self.topology.id}: the driver is closed; create a new one, on the same data_dir to continue"
            raise InputError(msg)
        return self._session

    def _waiting(self, txid: int) -> TransactionAttempt:
        if self.status(txid) not in (PROCESSING, COMMITTING):
            raise InputError(
                f"txid {txid}: expected a transaction that waits for an ack ({self._words()}), got one that is "
                f"{self.status(txid)}; ack one that is {PROCESSING} or {COMMITTING}, or add data or advance the clock"
            )
        return self.attempt(txid)

    def _words(self) -> str:
        return ", ".join(f"{txid} {status}" for txid, status in self.active.items()) or "none is active"

    def _check_stream(self, component: str, stream: str) -> None:
        streams = self.topology.component(component).streams
        if stream not in (*streams, DEFAULT_STREAM):
            hint = near(stream, list(streams))
            raise InputError(f"{component}: stream {stream!r} is not declared{hint}; it declares {sorted(streams)}")
