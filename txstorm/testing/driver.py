"""`TopologyTestDriver`: a topology in the hands of a test."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from txstorm.api.attempt import TransactionAttempt
from txstorm.api.names import DEFAULT_STREAM, near
from txstorm.engine.local import LocalEngine
from txstorm.engine.port import ErrorRow, Pack, Processed
from txstorm.errors import InputError
from txstorm.ledger.open import local_directory
from txstorm.monitor.progress import Monitor
from txstorm.results.views import SinkView, StateView, read_directory_history
from txstorm.runtime.opening import Clock, RunOptions, open_session
from txstorm.runtime.session import Session
from txstorm.runtime.stepping import ONE_AT_A_TIME, Stepper
from txstorm.testing.clock import ManualClock
from txstorm.testing.emissions import Emission, Emissions
from txstorm.topology.graph import Topology

PROCESSING, COMMITTING = "processing", "committing"


class InlineEngine(LocalEngine):
    """The local engine on the caller's thread, so that a breakpoint in a bolt stops the test itself.

    Args:
        emissions: records the emitted attempts and tuples.
    """

    name = "inline"

    def __init__(self, emissions: Emissions) -> None:
        super().__init__(emissions.observe)
        self._emissions = emissions

    def submit(self, pack: Pack) -> Future[list[Processed]]:
        """Process `pack` now."""
        self._emissions.attempts += [txid_input.attempt for txid_input in pack.inputs]
        future: Future[list[Processed]] = Future()
        try:
            future.set_result(self._run(pack))
        except Exception as error:  # noqa: BLE001 - handed to the reader of the future
            future.set_exception(error)
        return future

    def _run(self, pack: Pack) -> list[Processed]:
        assert self._program is not None
        tasks = self._program.components[self._program.spout].parallelism
        outcomes = self.run(pack)
        self._emissions.partial |= {outcome.attempt for outcome in outcomes if outcome.emitters < tasks}
        return outcomes


class TopologyTestDriver:
    """Runs a topology under the control of a test: the test says when each phase of each transaction is over.

    Coordinator, plan, spout, bolts, ledger and tables are the real ones; there are no threads, no Spark, and time
    stands still. A transaction that can start is processed at once, so that what its bolts emitted can be seen, but
    it stays *processing* until `ack`. When its turn comes its committers finish at once, and it stays *committing*
    until `ack` publishes it. `fail` fails the phase at hand, which replays it and all later ones, as in Storm.

    An exception of user code ends the topology as its settings say, and is raised by the call during which it
    happens. Transactions before it can still be acked, as in a run.

    Args:
        topology: what `build_topology` gave.
        data_dir: a directory to work in, new or of the same topology; one that is deleted afterwards when None.
        pending: how many transactions are in flight at once; that of the topology, or 1 where it says ``auto``.
        clock: the time.
        settings: settings over those of the topology. Packs and groups hold one transaction, whatever they say.

    Raises:
        InputError: something is wrong with the topology, the settings, the source or the directory.
        HeldError: another run has the directory.
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
            kind = type(topology).__name__
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
        try:
            self._open(topology)
        except BaseException:
            self.close()
            raise

    def _open(self, topology: Topology) -> None:
        self.topology = self._prepared(topology)
        options = RunOptions(clock=Clock(self.clock.now, self.clock.monotonic), observe=self._emissions.observe)
        engine, monitor = InlineEngine(self._emissions), Monitor()
        session = open_session(self.topology, engine, self.data_dir, options, monitor, lambda _: True)
        self._session = session
        self._stepper = Stepper(session, monitor)
        engine.start(session.program)
        self._stepper.open()

    def _prepared(self, topology: Topology) -> Topology:
        chosen = topology.with_settings({**self._settings, **ONE_AT_A_TIME})
        pending = self._pending
        if pending is None:
            pending = 1 if chosen.settings.max_spout_pending == "auto" else chosen.settings.max_spout_pending
        return chosen.with_settings({"max_spout_pending": pending})

    # -- what the test decides ----------------------------------------------------------------------------------

    def ack(self, which: int | TransactionAttempt) -> None:
        """The phase at hand is over: a processing transaction is processed, a committing one is published.

        Then everything that follows from it happens: commits that are due begin, new transactions start.

        Args:
            which: a txid, or an attempt; a late answer for an attempt that is not the current one changes nothing.

        Raises:
            InputError: no phase of this txid waits for an ack, or the driver is closed.
            TopologyFailed: user code raised in what followed.
        """
        self._running()
        self._stepper.ack(which if isinstance(which, TransactionAttempt) else self._waiting(which))

    def fail(self, which: int | TransactionAttempt, reason: str = "failed by the test") -> None:
        """The phase at hand failed: this transaction and all later ones are replayed, with new attempts.

        The first replay of a txid is immediate; after further failures the topology's ``retry_backoff`` has to pass
        first (`advance`).

        Args:
            which: a txid, or an attempt; a late failure of an attempt that is not the current one changes nothing.
            reason: is recorded as the cause.

        Raises:
            InputError: this txid is not active, or the driver is closed.
            TopologyFailed: user code raised in what followed, or the limit of retries is reached.
        """
        self._running()
        row = ErrorRow("the test", 0, "failed", "FailedException", reason, "", "")
        self._stepper.fail(which if isinstance(which, TransactionAttempt) else self.attempt(which), row)

    def next_tuple(self) -> None:
        """Ask the source again, as a run does all the time: for example after tuples were added to it."""
        self._running()
        self._stepper.wake()

    def source_end(self) -> Any:
        """What the source holds now, to be given to `reached`; None where the spout cannot tell."""
        return self._running().planning.planner.latest()

    def reached(self, end: Any) -> bool:
        """Whether all that the source held when `source_end` gave `end` is committed."""
        planning = self._running().planning
        return planning.planner.reached(planning.document(self.committed), end)

    def advance(self, seconds: float) -> None:
        """Let time pass: back-offs end, ``batch_timeout`` fails phases that were not acked, the source is asked."""
        self._running()
        self.clock.advance(seconds)
        self._stepper.pass_time()

    def commit(self, upto: int | None = None) -> None:
        """Ack both phases of the next transaction, or of all up to `upto`.

        Raises:
            InputError: one of them is not active: the source has nothing, or it waits for its back-off.
            TopologyFailed: user code raised.
        """
        last = self.committed + 1 if upto is None else upto
        while self.committed < last:
            self.ack(self.committed + 1)

    def restart(self, topology: Topology | None = None) -> None:
        """End as a process does that is killed, and start again on the same directory.

        Args:
            topology: the topology with other code, parallelism or settings; the same one when None.
        """
        self._release()
        self._open(topology or self.topology)

    # -- what the test sees -------------------------------------------------------------------------------------

    def emitted(
        self,
        component: str,
        txid: int | None = None,
        attempt: TransactionAttempt | int | None = None,
        stream: str = DEFAULT_STREAM,
    ) -> list[tuple[Any, ...]]:
        """The tuples `component` emitted, in order, whether or not anybody subscribes to them.

        Args:
            component: a spout or bolt.
            txid: of this transaction only.
            attempt: of this attempt, or attempt id; the last one of each transaction when None.
            stream: the stream.

        Raises:
            InputError: there is no such component or stream.
        """
        self._check_stream(component, stream)
        if isinstance(attempt, TransactionAttempt):
            attempt = attempt.attempt_id
        last = {one.txid: one.attempt_id for one in self._emissions.attempts}
        return [
            one.values
            for one in self._emissions.of(component, stream)
            if txid in (None, one.attempt.txid)
            and one.attempt.attempt_id == (last[one.attempt.txid] if attempt is None else attempt)
        ]

    @property
    def emissions(self) -> list[Emission]:
        """Everything that was emitted, by all components and attempts, oldest first."""
        return list(self._emissions.log)

    def attempt(self, txid: int) -> TransactionAttempt:
        """The current attempt at `txid`; raises `InputError` when it is not active."""
        entry = self._stepper.active.get(txid)
        if entry is None:
            msg = f"txid {txid}: expected an active transaction ({self._words()}), got one that is {self.status(txid)}"
            raise InputError(msg)
        return TransactionAttempt(txid, entry[0])

    def attempts(self, txid: int) -> list[TransactionAttempt]:
        """All attempts at `txid` so far, oldest first."""
        return self._emissions.of_txid(txid)

    def is_whole(self, attempt: TransactionAttempt) -> bool:
        """Whether all tasks of the spout have emitted their share in `attempt`; False if one of them failed."""
        return attempt not in self._emissions.partial

    def status(self, txid: int) -> str:
        """``processing``, ``processed``, ``committing``, ``committed``, or ``not started``."""
        entry = self._stepper.active.get(txid)
        if entry is not None:
            return entry[1].value
        return "committed" if 1 <= txid <= self.committed else "not started"

    @property
    def active(self) -> dict[int, str]:
        """Txid → status of the transactions in flight."""
        return {txid: status.value for txid, (_, status) in self._stepper.active.items()}

    @property
    def committed(self) -> int:
        """The last committed transaction, 0 before the first."""
        return self._stepper.committed

    def state(self, name: str) -> StateView:
        """The state `name`, as of the last committed transaction."""
        return StateView(self.data_dir, name)

    def sink(self, name: str) -> SinkView:
        """The rows of the sink `name`."""
        return SinkView(self.data_dir, name)

    def history(self) -> Any:
        """One row per committed txid, as a `pyarrow.Table`."""
        return read_directory_history(self.data_dir)

    # -- the end ------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Let go of everything; what was not acked is dropped. May be called twice."""
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
            msg = f"{self.topology.id}: the driver is closed; make another one, on the same data_dir to go on"
            raise InputError(msg)
        return self._session

    def _waiting(self, txid: int) -> TransactionAttempt:
        if self.status(txid) not in (PROCESSING, COMMITTING):
            msg = (
                f"txid {txid}: expected a transaction that waits for an ack ({self._words()}), got one that is "
                f"{self.status(txid)}; ack one that is {PROCESSING} or {COMMITTING}, or add data or advance the clock"
            )
            raise InputError(msg)
        return self.attempt(txid)

    def _words(self) -> str:
        return ", ".join(f"{txid} {status}" for txid, status in self.active.items()) or "none is active"

    def _check_stream(self, component: str, stream: str) -> None:
        streams = self.topology.component(component).streams
        if stream not in (*streams, DEFAULT_STREAM):
            hint = near(stream, list(streams))
            msg = f"{component}: stream {stream!r} is not declared{hint}; it declares {sorted(streams)}"
            raise InputError(msg)
