"""Spark sessions: create, check, share and use them; hides the differences between classic Spark and Spark Connect."""

from __future__ import annotations

import contextlib
import importlib.resources
import importlib.util
import logging
import os
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

from txstorm.clients.class_archive import java_options, java_program
from txstorm.errors import InputError, MissingDependency

log = logging.getLogger(__name__)

DAEMON = "txstorm.engine.spark_daemon"
UNIX_SOCKETS = "spark.python.unix.domain.socket.enabled"
# There are many small jobs, which compute in Python: on two cores, Java's second-tier compiler costs more time in the
# first hundreds of jobs than it ever saves. Without it, CPU time of the JVM per tiny job: 460 → 250 ms over the first
# 60 jobs, 180 → 110 ms later; jobs of 200,000 tuples take the same time. With one tier Java reserves 48 MB for compiled
# code, which streaming queries and Delta fill: sweeping it took a sixth of the JVM's time. With two it reserves 240 MB.
QUICK_JIT = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
# Recommended settings for a session, with the cost of not having them (2 cores, one tiny two-stage job).
WANTED: Mapping[str, tuple[str, str]] = {
    UNIX_SOCKETS: ("true", "about 50 ms per job: workers talk TCP instead of unix sockets"),
    "spark.python.daemon.module": (DAEMON, "about 20 ms per job: every task reads Spark's zip files again"),
    "spark.scheduler.mode": ("FAIR", "packs that run at once wait for each other's tasks"),
}


class Sessions:
    """Registry of this process's Spark session: shares an existing one, or creates and finally stops one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: Any = None
        self._users = 0

    def acquire(self, name: str, extra: Callable[[], Mapping[str, str]] = dict) -> Any:
        """Return this process's session, created with `extra` settings if there is none; `release` it afterwards."""
        with self._lock:
            existing = _existing_session()
            if existing is None:
                self._made, self._users = make_session(name, extra=extra()), 0
            elif existing is not self._made:
                check_session(existing)
                return existing
            self._users += 1
            return self._made

    def release(self, session: Any) -> None:
        """End one use of `session`; stop it if txstorm created it and this was the last use."""
        with self._lock:
            if session is not self._made:
                return
            self._users -= 1
            if self._users == 0:
                self._made = None
                _stop(session)


def _stop(session: Any) -> None:
    try:
        session.stop()
    except Exception as error:
        if is_alive(session):
            raise
        log.debug("the session had ended before it was stopped: %s", error)


def _existing_session() -> Any:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if SparkContext._active_spark_context is None:  # noqa: SLF001 - public ways to ask create one
        return None
    return SparkSession.builder.getOrCreate()  # type: ignore[attr-defined,unused-ignore]


def active_session() -> Any:
    """Return the session of this thread or process; raise `InputError` if there is none."""
    check_installed()
    from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession() or _existing_session()
    if session is None:
        raise InputError("there is no Spark session; create one first (SparkSession.builder…getOrCreate())")
    return session


sessions = Sessions()


def make_session(name: str, *, extra: Mapping[str, str] | None = None, java: str | None = None) -> Any:
    """Create a local classic session configured for txstorm; raise `MissingDependency` if pyspark is not installed.

    `java`: further options of its Java; None: the archive of classes, if there is one.
    """
    check_installed()
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    with _shared_path():  # the JVM passes the environment it starts with on to its workers
        builder: Any = SparkSession.builder.appName(name)  # type: ignore[attr-defined,unused-ignore]
        for key, value in {**_submitted(_settings(java_options() if java is None else java)), **(extra or {})}.items():
            builder = builder.config(key, value)
        return builder.getOrCreate()


def _submitted(settings: Mapping[str, str]) -> Mapping[str, str]:
    """Remove from `settings` those that a program started by spark-submit must not override."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return settings
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()  # noqa: SLF001 - connects to the JVM, which knows the submitted settings
    submitted = SparkConf()
    # Master and addresses are set by the submitter; the driver's JVM is already running.
    theirs = ("spark.master", "spark.driver.", "spark.ui.")
    return {key: value for key, value in settings.items() if not key.startswith(theirs) and not submitted.contains(key)}


def check_installed() -> None:
    """Raise `MissingDependency` unless pyspark is installed, and `InputError` unless Java is; changes nothing."""
    if importlib.util.find_spec("pyspark") is None:
        raise MissingDependency("pyspark", "spark")
    if java_program() is None:
        home = os.environ.get("JAVA_HOME")
        where = f"JAVA_HOME={home}" if home else "PATH"
        raise InputError(
            f"no Java found by {where}; Spark needs Java 17 or newer: install it (Debian: apt-get install "
            "openjdk-17-jre-headless; macOS: brew install openjdk@17) or use engine='local'"
        )


def _settings(java: str) -> dict[str, str]:
    log_settings = importlib.resources.files("txstorm.clients").joinpath("log4j2-quiet.properties")
    options = [f"-Dlog4j2.configurationFile=file:{log_settings}", QUICK_JIT, java]
    settings = {
        "spark.master": os.environ.get("TXSTORM_SPARK_MASTER", f"local[{os.cpu_count() or 2}]"),
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": " ".join(filter(None, options)),
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.showConsoleProgress": "false",
        "spark.scheduler.mode": "FAIR",
        "spark.python.daemon.module": DAEMON,
        "spark.executorEnv.PYTHONHASHSEED": "0",
        "spark.sql.artifact.isolation.enabled": "false",
    }
    if spark_version() >= (4, 1):
        settings[UNIX_SOCKETS] = "true"
    return settings


def spark_version() -> tuple[int, int]:
    """Return the major and minor version of the installed pyspark."""
    import pyspark

    major, minor, *_ = pyspark.__version__.split(".")
    return int(major), int(minor)


@contextlib.contextmanager
def _shared_path() -> Iterator[None]:
    """Context manager that extends `PYTHONPATH`, so that workers can import whatever the driver can import.

    It adds the directories on `sys.path` except those of the interpreter, and restores `PYTHONPATH` afterwards.
    """
    standard = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    mine = [os.path.abspath(entry or os.getcwd()) for entry in sys.path if entry not in standard]
    before = os.environ.get("PYTHONPATH")
    known = [entry for entry in (before or "").split(os.pathsep) if entry]
    usable = [entry for entry in mine if os.path.isdir(entry) and "lib-dynload" not in entry]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(known + usable))
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


_checked: set[int] = set()


def check_session(session: Any) -> None:
    """Log a warning, once per session, about missing recommended settings and their cost; changes nothing."""
    if id(session) in _checked:
        return
    _checked.add(id(session))
    if spark_version() < (4, 1):
        return
    for key, (wanted, cost) in WANTED.items():
        got = session.conf.get(key, None)
        if got != wanted:
            log.warning("this Spark session has %s=%s instead of %s; that costs %s", key, got, wanted, cost)


def is_connect(session: Any) -> bool:
    """Return whether `session` is a Spark Connect session."""
    return not hasattr(session, "_jsparkSession")


def is_alive(session: Any) -> bool:
    """Return whether `session` can still run jobs; a Connect session is assumed to be alive."""
    if is_connect(session):
        return True
    try:
        return not session.sparkContext._jsc.sc().isStopped()  # noqa: SLF001 - there is no public way to ask
    except Exception:  # noqa: BLE001 - py4j may raise any exception once its JVM has ended
        return False


def describe(session: Any) -> Mapping[str, Any]:
    """Return Spark's version and master for the description of a run; with Connect, the master is ``connect``."""
    if is_connect(session):
        return {"spark": session.version, "master": "connect"}
    return {"spark": session.version, "master": session.sparkContext.master}


@contextlib.contextmanager
def job_group(session: Any, group: str) -> Iterator[None]:
    """Context manager that assigns this thread's jobs to `group`, for `cancel`: a job group or, with Connect, a tag."""
    if is_connect(session):
        session.addTag(group)
        try:
            yield
        finally:
            session.removeTag(group)
    else:
        from pyspark.sql import SparkSession

        session.sparkContext.setJobGroup(group, group, interruptOnCancel=False)
        # Set the thread's active session; otherwise every UDF looks it up, with a dozen calls to the JVM.
        with contextlib.suppress(AttributeError):  # not public; everything works without it, but a little slower
            SparkSession._get_j_spark_session_class(session._jvm).setActiveSession(session._jsparkSession)  # noqa: SLF001
        yield


def cargo_type(target: str, cargo: str) -> Any:
    """Return the Spark type of rows with an INT column `target` and a BINARY column `cargo`.

    It is an object rather than a DDL string, which the JVM would parse every time.
    """
    from pyspark.sql.types import BinaryType, IntegerType, StructField, StructType

    return StructType([StructField(target, IntegerType()), StructField(cargo, BinaryType())])


def tasks_done(session: Any, group: str) -> int | None:
    """Return how many tasks of the jobs of `group` are done; None if unknown: with Connect, or if the session ended."""
    if session is None or is_connect(session):
        return None
    try:
        return sum(int(stage.numCompletedTasks) for stage in _stages(session, group))
    except Exception:  # noqa: BLE001 - as in `is_alive`
        return None


def tasks_repeated(session: Any, group: str) -> int:
    """Return how many tasks, or stages, of the ended jobs of `group` were lost and computed again.

    What Spark observes of a DataFrame counts the rows of a lost task twice.
    """
    context = session.sparkContext
    if context.master.startswith("local") and not context.master.startswith("local-cluster"):
        return 0  # there is no executor to lose, and a task is tried once
    # The failures of tasks reach the tracker before the end of their job, which the caller may know earlier.
    context._jsc.sc().listenerBus().waitUntilEmpty()  # noqa: SLF001 - there is no public way to wait
    return sum(int(stage.numFailedTasks) + int(stage.currentAttemptId) for stage in _stages(session, group))


def _stages(session: Any, group: str) -> list[Any]:
    """Return what the tracker knows of the stages of the jobs of `group`."""
    tracker = session.sparkContext.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
    stages = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
    return [stage for stage in stages if stage is not None]


def cancel(session: Any, group: str) -> None:
    """Cancel the jobs of `group`."""
    if is_connect(session):
        session.interruptTag(group)
    else:
        session.sparkContext.cancelJobGroup(group)


def partition_index() -> int:
    """Return the index of the partition being computed; call in a Spark worker only."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None, "only called inside a task"
    return context.partitionId()


def exchange(frame: Any, tasks: int, column: str) -> Any:
    """Shuffle each row to the partition whose index is in the INT `column`; the result has `tasks` partitions."""
    by_id = getattr(frame, "repartitionById", None)
    if by_id is not None:
        return by_id(tasks, column)
    # Spark 4.0: hash partitioning by numbers that are chosen such that each hashes to the wanted partition.
    from pyspark.sql import functions

    numbers = functions.array(*(functions.lit(number) for number in _landing(tasks)))
    moved = frame.withColumn("_at", functions.get(numbers, functions.col(column)))
    return moved.repartition(tasks, "_at").drop("_at")


@cache
def _landing(tasks: int) -> tuple[int, ...]:
    """Return, for each partition index, an int that Spark's hash partitioning maps to it."""
    found: dict[int, int] = {}
    number = 0
    while len(found) < tasks:
        found.setdefault(murmur3_int(number) % tasks, number)
        number += 1
    return tuple(found[index] for index in range(tasks))


def murmur3_int(value: int, seed: int = 42) -> int:
    """Compute Spark's ``hash(int)``: Murmur3 x86 32-bit of one int, as a signed number."""
    mask = 0xFFFFFFFF
    k = value * 0xCC9E2D51 & mask
    k = ((k << 15 | k >> 17) & mask) * 0x1B873593 & mask
    h = seed ^ k
    h = ((h << 13 | h >> 19) & mask) * 5 + 0xE6546B64 & mask
    h ^= 4
    h = (h ^ h >> 16) * 0x85EBCA6B & mask
    h = (h ^ h >> 13) * 0xC2B2AE35 & mask
    h ^= h >> 16
    return h - (1 << 32) if h & 0x80000000 else h


_LOST = ("Python worker exited unexpectedly", "cancelled", "OutOfMemoryError", "Python worker failed to")
"""Parts of the messages of jobs that failed without a fault of their code."""


def explain_failure(error: BaseException) -> str:
    """Return the essential part of a failed Spark job's error message, without the Java stack."""
    text = str(error)
    for needle in _LOST:
        if needle in text:
            line = next(line for line in text.splitlines() if needle in line)
            return f"the Spark job failed: {line.strip()[:400]}"
    raised = raised_in_worker(error)
    if raised is not None:
        return f"the Spark job failed: a worker raised {raised[:800]}"
    tail = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("at ")]
    return f"the Spark job failed: {' | '.join(tail[:3])[:800] or type(error).__name__}"


def raised_in_worker(error: BaseException) -> str | None:
    """Return ``type: message`` of the exception that a Python worker raised; None if `error` does not report one."""
    _, found, trace = str(error).rpartition("Traceback (most recent call last):\n")
    return next((line for line in trace.splitlines() if line[:1].strip()), None) if found else None


def raised_in_query(error: BaseException) -> tuple[str, str, str] | None:
    """Return type, message and traceback of an error that the code of a query raised, in Python or SQL; else None."""
    text = str(error)
    if any(needle in text for needle in _LOST):
        return None
    raised = raised_in_worker(error)
    if raised is not None:
        kind, _, message = raised.partition(": ")
        return kind, message, text.rpartition("Traceback (most recent call last):\n")[2]
    condition = getattr(error, "getCondition", lambda: None)()
    return None if condition is None else (str(condition), text.partition("\nJVM stacktrace")[0].strip(), "")
