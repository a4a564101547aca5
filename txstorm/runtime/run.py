"""`txstorm.run`: start a topology."""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from txstorm.books.data_directory import default_directory
from txstorm.books.origin import origin_of
from txstorm.clocks import Clock
from txstorm.engine.gc_pause import BETWEEN, seldom_collected
from txstorm.engine.local import LocalEngine
from txstorm.engine.port import Engine
from txstorm.errors import InputError
from txstorm.ledger.open import local_directory
from txstorm.monitor.progress import Listener, Monitor
from txstorm.runtime.companion import CommandHandler
from txstorm.runtime.control import with_commands
from txstorm.runtime.failures import system_failure
from txstorm.runtime.handle import RunHandle
from txstorm.runtime.opening import RunOptions, open_session
from txstorm.runtime.standby import Tell, closed_on_error, teller
from txstorm.topology.graph import Topology
from txstorm.user_code import described

ENGINES = ("spark", "local")
log = logging.getLogger(__name__)
_live: dict[Path, RunHandle] = {}
_live_lock = threading.Lock()


def run(
    topology: Topology,
    *,
    engine: str | Engine = "spark",
    data_dir: str | Path | None = None,
    spark: Any = None,
    available_now: bool = False,
    until_txid: int | None = None,
    settings: Mapping[str, Any] | None = None,
    listeners: Sequence[Listener] = (),
    journal: str | Path | None = None,
    target: str | None = None,
    ledger: str | None = None,
    standby: bool | Tell = False,
    drop: Sequence[str] = (),
    end_of_input: bool = False,
    accept_clock: bool = False,
    want: Mapping[str, int] | None = None,
) -> RunHandle:
    """Start `topology` and return immediately; a later start in the same directory resumes where this run stopped.

    A live run of the same directory in this process is stopped first, so that a notebook cell can be run repeatedly.

    Args:
        topology: the result of `build_topology`.
        engine: ``spark``, ``local`` (threads, no JVM), or an engine object.
        data_dir: directory of the tables and the ledger; by default ``./txstorm-data/<topology id>``.
        spark: an existing Spark session to use.
        available_now: end the run once everything that the source currently holds is committed.
        until_txid: end the run once this txid is committed.
        settings: overrides for the topology's settings, keyed by name or by Storm's configuration key.
        listeners: called with a `TransactionProgress` after every commit, in order, on a separate thread.
        journal: file to which the coordinator's events and commands are appended.
        target: MODULE:ATTRIBUTE by which a replay locates the topology; by default the module attribute that refers to
            it, if there is one.
        ledger: ``sqlite:PATH``, ``zookeeper:HOSTS/CHROOT``, ``delta:URI`` or ``memory``; by default the one that the
            directory was last run with, or the setting ``ledger``, or ``ledger.db`` in the directory.
        standby: if another process runs this directory, start the engine, wait until that run ends, and take over;
            `run` returns only then. If it is a function, it is called with messages about the other run; True: they are
            logged.
        drop: names of states, sinks, maps, outlets and sources that earlier runs had and the topology no longer has.
            Unless they are named here, the run does not start. A dropped table is kept as of the last committed
            transaction, and its name cannot be reused in this directory.
        end_of_input: read everything that the source currently holds, as with `available_now`, then commit an
            end-of-input transaction, which closes open windows. The ledger records it: later runs read nothing more,
            unless the topology is rewound to a transaction before it.
        accept_clock: believe the machine's clock, although it is long after the last run, or before its last stamp.
        want: the clock of the source at which a snapshot is taken, unless there is one already: see
            `RunHandle.want_snapshot`; a clock that is refused ends the run.

    Raises:
        InputError: the topology, a setting, the source or the directory is invalid.
        StateError: a declaration differs from its table, or the topology lacks a recorded table or source.
        HeldError: another process runs this directory, and `standby` is False.
        FencedError: another process took over this directory before this run could begin.
        KilledError: the topology was ended with ``txstorm kill`` while this run was on standby.
    """
    _check_topology(topology, bounded=available_now)
    origin = origin_of(topology, target)
    if settings:
        topology = topology.with_settings(settings)
    directory = local_directory(data_dir or default_directory(topology.id)).absolute()
    until, record = _checked_until(until_txid), Path(journal) if journal else None
    if end_of_input and until is not None:
        msg = f"end_of_input and until_txid={until}: the input ends after its last tuple; leave out one of the two"
        raise InputError(msg)
    options = RunOptions(
        available_now,
        until,
        record,
        origin=origin,
        ledger=ledger,
        standby=teller(standby),
        drop=_names(drop),
        end_of_input=end_of_input,
        accept_clock=accept_clock,
        want=None if want is None else Clock(want),
    )
    chosen = make_engine(engine, spark, topology.settings.max_jobs)
    return launch(topology, chosen, directory, options, listeners)


@seldom_collected(BETWEEN)
def launch(
    topology: Topology,
    engine: Engine,
    data_dir: Path,
    options: RunOptions,
    listeners: Sequence[Listener] = (),
    commands: Sequence[CommandHandler[Any]] = (),
) -> RunHandle:
    """Start a run for `run` or another front end, which may add life-cycle commands; raises the same errors as `run`.

    A live run of the same directory in this process is stopped first.

    Args:
        topology: the topology with its settings.
        engine: runs the packs; closed at the end of the run.
        data_dir: absolute path of the data directory.
        options: see `RunOptions`.
        listeners: called after every commit.
        commands: life-cycle commands of the front end, which other processes send with `operations.lifecycle.ask`.
    """
    handlers = with_commands(commands)
    _stop_live(data_dir)
    monitor = Monitor(listeners)
    stopping = options.lanes.event()
    try:
        with closed_on_error(engine, started=options.standby is not None or topology.pending is not None):
            session = open_session(topology, engine, data_dir, options, monitor, stopping.wait)
    except OSError as error:
        raise system_failure(error, data_dir) from error
    handle = RunHandle(topology, session, monitor, stopping, handlers)
    with _live_lock:
        _live[data_dir] = handle
    handle.on_end(lambda: _forget(data_dir, handle))
    handle.start()
    return handle


def _check_topology(topology: Topology, *, bounded: bool) -> None:
    """Raise `InputError` if `topology` is not a built topology; log its warnings, and those of a bounded run."""
    if not isinstance(topology, Topology):
        raise InputError(f"run takes a built topology, got {described(topology)}; call build_topology() on the builder")
    for warning in topology.warnings:
        log.warning("topology %s: %s", topology.id, warning)
    for one in topology.components:
        if bounded and getattr(one.object, "processing_time", False):
            log.warning(
                "topology %s: %s has processing-time windows, which no heartbeat closes in a run that ends when all "
                "data is read: give it timestamps (with_timestamp_field), or end the input (--end-of-input)",
                topology.id,
                one.id,
            )


def make_engine(engine: str | Engine, spark: Any, jobs: int) -> Engine:
    """Create the engine named `engine`; an engine object is returned unchanged.

    Args:
        engine: ``spark``, ``local``, or an engine object.
        spark: an existing Spark session to use.
        jobs: maximum number of concurrent jobs.

    Raises:
        InputError: the engine name is unknown.
        MissingDependency: pyspark is not installed.
    """
    if engine is not None and not isinstance(engine, str):
        return engine
    if engine == "local":
        return LocalEngine()
    if engine == "spark":
        from txstorm.engine.spark import SparkEngine

        return SparkEngine(spark, jobs=jobs)
    raise InputError(f"engine {engine!r}: expected one of {', '.join(ENGINES)}")


def _names(drop: Sequence[str]) -> tuple[str, ...]:
    if isinstance(drop, str) or not all(isinstance(name, str) for name in drop):
        raise InputError(f"drop: expected a list of names, such as ['counts'], got {drop!r}")
    return tuple(drop)


def _checked_until(until_txid: int | None) -> int | None:
    if until_txid is not None and (type(until_txid) is not int or until_txid < 1):
        raise InputError(f"until_txid: expected a txid of at least 1, got {until_txid!r}")
    return until_txid


def _stop_live(directory: Path) -> None:
    with _live_lock:
        handle = _live.get(directory)
    if handle is not None:
        handle.stop()


def _forget(directory: Path, handle: RunHandle) -> None:
    with _live_lock:
        if _live.get(directory) is handle:
            del _live[directory]


def _stop_all() -> None:
    """Stop all live runs when the program exits without calling `stop`; called while threads are still usable."""
    for handle in list(_live.values()):
        handle.stop()


# `atexit` hooks run after the interpreter has closed the thread pools; this hook of `threading` runs before.
getattr(threading, "_register_atexit", atexit.register)(_stop_all)
