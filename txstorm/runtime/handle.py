"""The handle of a run: the methods of Spark's `StreamingQuery`, plus Storm's concepts (txids, attempts, phases).

It is one module, since users have one object for all that a run does and shows.
"""

from __future__ import annotations

import html
import logging
import uuid
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as FutureTimeout
from pathlib import Path
from typing import Any

from txstorm.books.savepoint import Savepoint
from txstorm.clocks import Clock
from txstorm.display import Facts
from txstorm.engine.gc_pause import BETWEEN, seldom_collected
from txstorm.errors import DeadLettersWarning, StoppedError
from txstorm.lanes import Flag, Lanes
from txstorm.monitor.progress import Monitor, Snapshot, TransactionProgress, windows_json
from txstorm.operations.savepoints import checked_wait, create_savepoint
from txstorm.plan.explain import explain
from txstorm.results.snapshot import TopologySnapshot, snapshot
from txstorm.results.spark_views import register_views
from txstorm.results.views import DeadLettersView, SinkView, StateView, read_clock, read_directory_history
from txstorm.runtime.companion import CommandHandler
from txstorm.runtime.control import CORE_COMMANDS
from txstorm.runtime.driver import Driver
from txstorm.runtime.failures import letters_command, system_failure
from txstorm.runtime.session import Session
from txstorm.runtime.standby import real_end
from txstorm.topology.graph import Topology

log = logging.getLogger(__name__)
LOOK_UP = 0.5
"""Interval, in seconds, at which a thread waiting for the end of a run wakes up."""


def waited(event: Flag, lanes: Lanes, timeout: float | None = None) -> bool:
    """Wait up to `timeout` seconds for `event`, reacting to Ctrl-C within `LOOK_UP` seconds; return whether it is set.

    A signal that arrives just before the main thread blocks, or that the operating system delivers to another thread,
    does not wake the main thread. It therefore wakes up at intervals; otherwise it would block until the run ends.
    """
    end = None if timeout is None else lanes.monotonic() + timeout
    while not event.wait(LOOK_UP if end is None else max(0.0, min(LOOK_UP, end - lanes.monotonic()))):
        if end is not None and lanes.monotonic() >= end:
            return False
    return True


class RunHandle:
    """Handle of a running topology, returned by `txstorm.run`. Thread-safe.

    Attributes:
        name: the topology's id.
        runId: UUID of this run.
        data_dir: directory of its tables and its ledger.
    """

    def __init__(
        self,
        topology: Topology,
        session: Session,
        monitor: Monitor,
        stopping: Flag,
        commands: Mapping[str, CommandHandler[Any]] = CORE_COMMANDS,
    ) -> None:
        self._session = session
        self._monitor = monitor
        self._driver = Driver(session, monitor, stopping, commands=commands)
        self._error: BaseException | None = None
        self._phase = "starting"
        self._compact = session.settings.compact_on_stop
        self._warned = 0
        self._ended: list[Callable[[], None]] = []
        self.name = topology.id
        self.runId = str(uuid.uuid4())
        self.data_dir: Path = session.data_dir
        # Not `Thread.join`: a Ctrl-C that interrupts it marks the thread as ended (CPython before 3.13).
        self._done = session.lanes.event()
        self._driver_lane: object = None

    def start(self) -> None:
        """Start the driver thread. Called only once, by `launch`."""
        self._driver.control.starting()
        self._session.lanes.start(self._body, f"txstorm-{self.name}")

    @seldom_collected(BETWEEN)
    def _body(self) -> None:
        self._driver_lane = self._session.lanes.current()
        try:
            self._session.engine.start(self._session.program)
            self._phase = "running"
            self._driver.run()
        except BaseException as error:
            self._error = system_failure(real_end(error, self._session.books), self.data_dir)
            log.debug("topology %s failed", self.name, exc_info=error)
        finally:
            try:
                self._close()
            finally:
                self._done.set()

    def _close(self) -> None:
        try:
            self._phase = "stopping"
            self._session.close(
                compact=lambda: self._compact and self._error is None,
                ended=lambda error: self._driver.control.ended(self._error or error),
            )
        except BaseException as error:  # noqa: BLE001
            self._error = self._error or system_failure(error, self.data_dir)
        self._monitor.close()
        self._phase = "failed" if self._error is not None else "stopped"
        for call in self._ended:
            call()

    def on_end(self, call: Callable[[], None]) -> None:
        """Register `call`, to be called on the driver thread once the run has ended."""
        self._ended.append(call)

    # -- StreamingQuery's names ---------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        """UUID of the topology's incarnation; it stays the same across restarts."""
        return self._session.identity.incarnation

    @property
    def isActive(self) -> bool:  # noqa: N802
        """True while the run has not ended."""
        return not self._done.is_set()

    @property
    def status(self) -> dict[str, Any]:
        """Current status of the run: the keys of `StreamingQuery.status`, plus Storm-specific keys."""
        now = self.progress
        clock = self._session.clock.problem
        message = f"BLOCKED({now.blocked})" if now.blocked else f"CLOCK({clock})" if clock else self.phase
        facts = {
            "message": message,
            "isDataAvailable": bool(now.in_flight),
            "isTriggerActive": bool(now.in_flight),
            "phase": self.phase,
            "parallelism": {component.id: component.parallelism for component in self.topology.components},
            "committed": now.committed,
            "inFlight": len(now.in_flight),
            "replays": now.replays,
            "lastFailure": now.last_failure,
            "failures": {txid: {"count": count, "cause": cause} for txid, count, cause in now.failures},
            "deadLetters": now.dead_letters,
            **({"working": [one.to_json() for one in now.working]} if now.working else {}),
            **({"windows": windows_json(now.windows)} if now.windows else {}),
        }
        return Facts(f"status of {self.name}", facts)

    @property
    def phase(self) -> str:
        """Current phase of the run.

        One of ``starting``, ``running``, ``inactive``, ``rebalancing``, ``killing``, ``stopping``, ``stopped`` and
        ``failed``.
        """
        mode = self._driver.control.mode
        return mode if self._phase == "running" and mode != "active" else self._phase

    @property
    def killed(self) -> str | None:
        """Description of the process that ended the run with ``txstorm kill``; None if the run was not killed."""
        return self._driver.control.killer

    @property
    def lastProgress(self) -> TransactionProgress | None:  # noqa: N802
        """Progress of the most recently committed transaction; None before the first commit."""
        recent = self._monitor.recent()
        return recent[-1] if recent else None

    @property
    def recentProgress(self) -> list[TransactionProgress]:  # noqa: N802
        """Progress of the most recently committed transactions, oldest first."""
        return self._monitor.recent()

    def awaitTermination(self, timeout: float | None = None) -> bool:  # noqa: N802
        """Wait at most `timeout` seconds for the run to end; return whether it has. Raises the error that ended it."""
        if not waited(self._done, self._session.lanes, timeout):
            return False
        self._raise()
        self._warn_of_letters()
        return True

    def processAllAvailable(self) -> None:  # noqa: N802
        """Block until all data in the source at the time of the call is committed; raises the error that ended the run.

        After this call, transactions start only if the source has new data.
        """
        done = self._driver.wait_for_all()
        while True:
            try:
                self._session.lanes.result(done, 0.2)
                self._warn_of_letters()
                return
            except FutureTimeout:
                if not self.isActive and not done.done():
                    self._living()
            except CancelledError:
                self._raise()

    def standing(self) -> tuple[int, Any, Any]:
        """Return the last committed txid, its spout metadata, and that of the txid planned after it (None: none is).

        Only of a driver-planned spout; the metadata of a system transaction are those of the last batch before it. Once
        the run has ended, it is what held then.
        """
        planning = self._session.planning

        def found() -> tuple[int, Any, Any]:
            last = self._driver.state.currtx - 1
            committed, planned = (planning.document(txid) for txid in (last, last + 1))
            undecided = None if planned is None or planned.get("skipped") else planned["meta"]
            return last, None if committed is None else committed["meta"], undecided

        standing: tuple[int, Any, Any] = self._asked(found)
        return standing

    def forget_plan(self, txid: int) -> None:
        """Forget the plan of an undecided txid, so that it is planned anew; its batch must have had no effect."""
        self._asked(lambda: self._session.planning.drop(txid))

    def _asked(self, question: Callable[[], Any]) -> Any:
        """Ask on the driver thread or, once the run has ended, here."""
        answer = self._driver.ask(question)
        while self.isActive:
            try:
                return self._session.lanes.result(answer, 0.2)
            except FutureTimeout:
                continue
        return answer.result(0) if answer.done() else question()

    def stop(self, *, drain: bool = False) -> None:
        """Stop the run and wait for its end; with `drain`, commit everything in flight first.

        A listener may call this too; in that case it returns without waiting.
        """
        self._driver.stop(drain=drain)
        if self._session.lanes.current() != self._driver_lane and not self._monitor.is_calling_listeners():
            waited(self._done, self._session.lanes)
            self._warn_of_letters()

    def exception(self) -> BaseException | None:
        """Return the error that ended the run; None if there is none."""
        return self._error

    def _warn_of_letters(self) -> None:
        """Warn about the dead letters since the last warning; the warning refers to the line of the caller's code."""
        left_out, self._warned = self.progress.dead_letters - self._warned, self.progress.dead_letters
        if left_out > 0:
            what = "1 record was" if left_out == 1 else f"{left_out:,} records were"
            see = f"{letters_command(self.data_dir)}, or handle.dead_letters()"
            warnings.warn(f"topology {self.name}: {what} left out; see: {see}", DeadLettersWarning, stacklevel=3)

    def explain(self, *, why: bool = False) -> None:
        """Print the compiled plan; `why`: also why a job cannot commit large transactions of a committer."""
        print(explain(self.topology, why=why))

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    # -- Storm's state ------------------------------------------------------------------------------------------

    @property
    def progress(self) -> Snapshot:
        """Current progress of the run."""
        return self._monitor.snapshot()

    @property
    def txid(self) -> int:
        """The txid that commits next."""
        return self.progress.committed + 1

    @property
    def committed(self) -> int:
        """The last committed txid of the topology; 0 before the first."""
        return self.progress.committed

    @property
    def in_flight(self) -> tuple[tuple[int, int, str], ...]:
        """The transactions in flight, each as (txid, attempt id, phase)."""
        return self.progress.in_flight

    @property
    def engine(self) -> str:
        """Name of the engine."""
        return self._session.engine.name

    @property
    def topology(self) -> Topology:
        """The running topology, with its current numbers of tasks."""
        return self._session.topology

    @property
    def ends(self) -> bool:
        """True if the run ends by itself (`available_now` or `until_txid`)."""
        return self._session.flow.ends

    def skip_compaction(self) -> None:
        """Skip the final compaction of the state tables, for example after a second Ctrl-C."""
        self._compact = False

    # -- results ------------------------------------------------------------------------------------------------

    def state(self, name: str) -> StateView:
        """Return a view of the state `name`, as of the last committed transaction."""
        return StateView(self.data_dir, name)

    def sink(self, name: str) -> SinkView:
        """Return a view of the rows of the sink `name`."""
        return SinkView(self.data_dir, name)

    def dead_letters(self) -> DeadLettersView:
        """Return a view of the dead letters: records omitted from their transactions, as permitted by `on_error`."""
        return DeadLettersView(self.data_dir)

    def snapshot(self, txid: int | None = None) -> TopologySnapshot:
        """Return all tables as of `txid`, by default the last committed one; see `txstorm.snapshot`."""
        return snapshot(self.data_dir, txid)

    def register_views(self, spark: Any, txid: int | None = None, name_prefix: str = "") -> list[str]:
        """Register views of all tables in the session `spark`; return their names. See `txstorm.register_views`."""
        return register_views(spark, self.data_dir, txid, name_prefix)

    def savepoint(self, name: str, txid: int | None = None) -> Savepoint:
        """Create a savepoint of all tables as of `txid`, by default the last committed one; see `create_savepoint`."""
        return create_savepoint(self.data_dir, name, txid)

    def want_snapshot(self, clock: Mapping[str, int], name: str | None = None, wait: float | None = None) -> None:
        """Ask for a snapshot at `clock`: a savepoint of a transaction with exactly this clock of the source.

        No transaction passes it; a partition that has reached it is held until the others have. Once that transaction
        is committed, the snapshot is listed by `txstorm.operations.savepoints.list_snapshots`.

        Args:
            clock: partition → the last offset to count; not behind the last transaction planned.
            name: name of the savepoint; None: ``snapshot-NUMBER``.
            wait: seconds after which it is given up; None: the setting ``snapshot_wait``.

        Raises:
            InputError: the clock names other partitions, or is behind the present one or beyond the end of the source;
                another one is wanted; the name is taken; or the spout cannot stop at a clock.
            StoppedError: the run has ended.
        """
        wanted, seconds = Clock(clock), None if wait is None else checked_wait(wait)
        self._living()
        self._asked(lambda: self._driver.snapshots.want(wanted, name, seconds))

    def cancel_snapshot(self) -> None:
        """Give up the clock that is wanted, if one is."""
        self._living()
        self._asked(lambda: self._driver.snapshots.cancel("it was cancelled"))

    def _living(self) -> None:
        if not self.isActive:
            self._raise()
            raise StoppedError("the run has ended")

    def clock(self, txid: int | None = None) -> Clock | None:
        """Return the clock of `txid`, by default of the last committed one; None if the source has no clocks."""
        return read_clock(self.data_dir, txid)

    def history(self) -> Any:
        """Return the history as a `pyarrow.Table`, with one row per committed txid."""
        return read_directory_history(self.data_dir)

    def progress_df(self) -> Any:
        """Return the progress of recent transactions as a pandas DataFrame."""
        import pandas as pd

        rows = [
            {"txid": progress.txid, "rows": progress.numInputRows, **progress.durationMs}
            for progress in self.recentProgress
        ]
        return pd.DataFrame(rows)

    def __repr__(self) -> str:
        now = self.progress
        return (
            f"<txstorm run {self.name}: {self.phase}, committed txid {now.committed}, {len(now.in_flight)} in flight>"
        )

    def _repr_html_(self) -> str:
        now = self.progress
        rows = {
            "status": self.status["message"],
            "committed txid": now.committed,
            "in flight": len(now.in_flight),
            "input rows": f"{now.rows:,}",
            "tuples": f"{now.tuples:,}",
            "replays": now.replays,
            **({"at work": "; ".join(map(str, now.working))} if now.working else {}),
            **{one.label(component): one for component, one in now.windows.items()},
            **({"dead letters": now.dead_letters} if now.dead_letters else {}),
            "data": self.data_dir,
        }
        if self._error is not None:
            rows["error"] = self._error
        cells = "".join(f"<tr><th>{html.escape(k)}</th><td>{html.escape(str(v))}</td></tr>" for k, v in rows.items())
        return f"<table><caption>{html.escape(self.name)}</caption>{cells}</table>"
