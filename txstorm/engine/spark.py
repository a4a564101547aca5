"""The Spark engine: a pack runs as a Spark job, a stage of the plan as a Python stage, a Storm task as a partition."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import cloudpickle
import pyarrow as pa

from txstorm.api.context import WorkProgress
from txstorm.clients import spark as client
from txstorm.clients.spark_frames import observed
from txstorm.engine import frames
from txstorm.engine.cargo import Cargo, decode, encode
from txstorm.engine.gather import destinations, gather
from txstorm.engine.local import LocalEngine
from txstorm.engine.port import LargeCommit, Pack, Processed, ShareDone
from txstorm.engine.program import Program, digest_of
from txstorm.engine.task.commit_job import as_cargo, of_cargo, run_share
from txstorm.engine.task.stage import StageTask
from txstorm.errors import EngineError, InputError, SessionLost, TxstormError

log = logging.getLogger(__name__)
SCHEMA = pa.schema([pa.field("target", pa.int32()), pa.field("cargo", pa.binary())])
_FLUSH_BYTES = 8 << 20
_programs: dict[str, Program] = {}
Batches = Iterable[pa.RecordBatch]
StageFunction = Callable[[Batches], Iterator[pa.RecordBatch]]
A = TypeVar("A")


class SparkEngine:
    """Engine that runs packs on a Spark session, classic or Connect.

    A session that is passed in, or that already exists in the process, is used as it is and never stopped; otherwise
    `start` creates one, which is stopped when its last engine is closed.

    Raises:
        MissingDependency, InputError: pyspark or Java is missing.
    """

    name = "spark"

    def __init__(self, session: Any = None, *, jobs: int = 2) -> None:
        if session is None:
            client.check_installed()
        self._given = session is not None
        self._session = session
        self._numbers = itertools.count(1)
        self._groups: dict[Future[Any], tuple[str, int]] = {}
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(jobs, thread_name_prefix="txstorm-spark")
        # Separate threads: a commit must not wait for packs, which may wait for it.
        self._commits = ThreadPoolExecutor(1, thread_name_prefix="txstorm-spark-commit")
        self._here = LocalEngine()
        self._program: Program | None = None
        self._shipped = b""

    def start(self, program: Program) -> None:
        """Create the Spark session, or use the existing one."""
        self._program = program
        self._here.start(program)
        self._shipped = cloudpickle.dumps(program)
        session = self.session(program.topology)
        if self._given:
            client.check_session(session)
        frames.check(session, program)

    def session(self, topology: str) -> Any:
        """Return the session of the engine, which is created if there is none."""
        if self._session is None:
            self._session = client.sessions.acquire(f"txstorm {topology}")
        return self._session

    def warm_up(self) -> None:
        """Run an empty job shaped like a pack, so that Spark loads its classes and the workers load the program."""
        assert self._program is not None
        program, shipped = self._program, self._shipped_program()
        future = self._submit(
            self._pool,
            lambda group: list(
                self._collected(lambda: self._frame(program, lambda level: warm_function(shipped, level)), group)
            ),
            0,
        )
        try:
            future.result()
        except EngineError as error:
            log.warning("the first packs will take longer: the engine could not be warmed up for them (%s)", error)

    def submit(self, pack: Pack) -> Future[list[Processed]]:
        """Process `pack` as one Spark job; one of system transactions on a thread of the driver, by the same code."""
        if pack.system:
            return self._here.submit(pack)
        assert self._program is not None
        tasks = sum(stage.tasks for stage in self._program.stages)
        return self._submit(self._pool, lambda group: self._run(pack, group), tasks)

    def commit(self, work: LargeCommit) -> Future[list[ShareDone]]:
        """Finish the shares of a large commit as one Spark job, each in a partition."""
        return self._submit(self._commits, lambda group: self._run_shares(work, group), len(work.shares))

    def how_far(self, future: Future[Any]) -> WorkProgress | None:
        """Return how many tasks of a pack or commit are done, as Spark knows it; rows are counted in the workers."""
        with self._lock:
            group, tasks = self._groups.get(future, ("", 0))
        if not group:
            return self._here.how_far(future)
        done = client.tasks_done(self._session, group)
        return WorkProgress() if done is None else WorkProgress(done=min(done, tasks), tasks=tasks)

    def _submit(self, pool: ThreadPoolExecutor, job: Callable[[str], A], tasks: int) -> Future[A]:
        group = f"txstorm-{id(self)}-{next(self._numbers)}"
        future = pool.submit(job, group)
        with self._lock:
            self._groups[future] = group, tasks
        future.add_done_callback(self._forget)
        return future

    def _forget(self, future: Future[Any]) -> None:
        with self._lock:
            self._groups.pop(future, None)

    def cancel(self, future: Future[Any]) -> None:
        """Cancel the Spark job of a pack or commit."""
        with self._lock:
            group, _ = self._groups.get(future, ("", 0))
        if not group:  # done, or a system transaction
            self._here.cancel(future)
        elif not future.cancel():
            try:
                client.cancel(self._session, group)
            except Exception as error:  # noqa: BLE001 - py4j raises anything once the JVM has died, and the job with it
                log.warning("job group %s could not be cancelled: %s", group, error)

    def describe(self) -> Mapping[str, Any]:
        """Return the name of the engine, Spark's version and its master."""
        return {"engine": self.name, **client.describe(self._session)}

    def close(self) -> None:
        """Cancel running jobs; stop the session if this engine created it."""
        self._here.close()
        with self._lock:
            running = list(self._groups)
        for future in running:
            self.cancel(future)
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._commits.shutdown(wait=True, cancel_futures=True)
        if not self._given and self._session is not None:
            client.sessions.release(self._session)
            self._session = None

    def _run(self, pack: Pack, group: str) -> list[Processed]:
        assert self._program is not None
        program, shipped = self._program, self._shipped_program()
        if program.frames:
            return self._run_frames(program, shipped, pack, group)

        def frame() -> Any:
            return self._frame(program, lambda level: stage_function(shipped, pack, level))

        return gather(program, pack, self._collected(frame, group))

    def _run_frames(self, program: Program, shipped: Shipped, pack: Pack, group: str) -> list[Processed]:
        """Process a pack whose rows are in DataFrames, which are built and computed in the job group of the pack."""

        @contextmanager
        def building() -> Iterator[None]:
            try:
                with client.job_group(self._session, group):
                    yield
            except Exception as error:
                raise self._failure(error) from error

        def compute(light: Pack, together: Callable[[], Any]) -> tuple[list[Processed], frames.Observed]:
            made = list[Any]()

            def frame() -> Any:
                made.append(self._frame(program, lambda level: stage_function(shipped, light, level), together()))
                return made[0]

            outcomes = gather(program, light, self._collected(frame, group))
            return outcomes, lambda name: observed(made[0], name)

        repeated = 0
        while True:
            done = frames.process(self._session, program, pack, compute, building)
            try:
                before, repeated = repeated, client.tasks_repeated(self._session, group)
            except Exception as error:  # the session has ended, or Spark's events are too far behind to know
                raise self._failure(error) from error
            if repeated == before:
                return done
            log.warning("tasks were lost; their rows are counted twice in the digest, so the pack is processed again")

    def _run_shares(self, work: LargeCommit, group: str) -> list[ShareDone]:
        """Run the shares of a large commit and collect their results; no shuffle, as the input is already divided."""
        shares = len(work.shares)

        def frame() -> Any:
            function = share_function(self._shipped_program(), work)
            return self._session.range(0, shares, 1, shares).mapInArrow(function, client.cargo_type(*SCHEMA.names))

        done = {one.source: of_cargo(one) for one in self._collected(frame, group)}
        return [done[number] for number in range(shares)]

    def _collected(self, frame: Callable[[], Any], group: str) -> Iterator[Cargo]:
        """Collect the rows of the data frame that `frame` builds, a call that may itself fail, as it calls the JVM."""
        try:
            with client.job_group(self._session, group):
                table = frame().toArrow()
        except Exception as error:
            raise self._failure(error) from error
        return (decode(value.as_buffer()) for value in table.column("cargo"))

    def _failure(self, error: Exception) -> TxstormError:
        """Convert the error of a job to a `TxstormError`; an `InputError` raised in a worker keeps its class."""
        if not client.is_alive(self._session):
            msg = (
                f"the Spark session has ended ({client.explain_failure(error)}); nothing that was committed is lost: "
                "start the topology again with a new session"
            )
            return SessionLost(msg)
        kind, _, message = (client.raised_in_worker(error) or "").partition(": ")
        if kind == f"{InputError.__module__}.{InputError.__name__}":
            return InputError(message)
        return EngineError(client.explain_failure(error))

    def _frame(self, program: Program, function: Callable[[int], StageFunction], rows: Any = None) -> Any:
        """Build the data frame of all stages; `function` returns the function of a stage; `rows`: those of frames."""
        cargo, tasks = client.cargo_type(*SCHEMA.names), program.stages[0].tasks
        frame = self._session.range(0, tasks, 1, tasks) if rows is None else rows
        for stage in program.stages:
            if stage.level > 0:
                frame = client.exchange(frame, stage.tasks, "target")
            frame = frame.mapInArrow(function(stage.level), cargo)
        return frame

    def _shipped_program(self) -> Shipped:
        return Shipped(digest_of(self._shipped), self._shipped)


class Shipped:
    """A program shipped to workers, each of which unpickles it once."""

    def __init__(self, digest: str, program: bytes) -> None:
        self.digest = digest
        self.program = program

    def load(self) -> Program:
        """Load the program, from the worker's cache if it has been loaded before.

        Raises `InputError` if the class of a custom grouping cannot be imported.
        """
        program = _programs.get(self.digest)
        if program is None:
            _programs.clear()  # usually one topology at a time: the replaced program is an older version of it
            try:
                program = _programs[self.digest] = cloudpickle.loads(self.program)
            except (ImportError, AttributeError) as error:
                raise InputError(
                    f"a custom grouping cannot be loaded in a worker: {error}; the module of its class must be one "
                    "that workers can import: put its directory on PYTHONPATH before Spark starts, or install it there"
                ) from error
        return program


def stage_function(shipped: Shipped, pack: Pack, level: int) -> StageFunction:
    """Return the function that Spark runs in every partition of the stage at `level`."""

    def run(batches: Batches) -> Iterator[pa.RecordBatch]:
        program = shipped.load()
        if level == 0 and program.frames:
            task, arrived = client.partition_index(), list[Cargo]()
            given = frames.with_rows(program, pack, batches)
        else:
            (task, arrived), given = _read(batches, level), pack
        sent = StageTask(program, level, task, given).run(arrived)
        yield from _write(program, level, task, sent)

    return run


def warm_function(shipped: Shipped, level: int) -> StageFunction:
    """Return the function that Spark runs in every partition of the stage at `level` during warm-up."""

    def run(batches: Batches) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        program = shipped.load()
        for component in program.stages[level].components:
            program.components[component].fresh()
        yield _rows([], [])

    return run


def share_function(shipped: Shipped, work: LargeCommit) -> StageFunction:
    """Return the function that Spark runs in every partition of a large commit."""

    def run(batches: Batches) -> Iterator[pa.RecordBatch]:
        program = shipped.load()
        number, _ = _read(batches, 0)
        done = as_cargo(work, number, run_share(program, work, work.shares[number]))
        yield _rows([0], [encode(done)])

    return run


def _read(batches: Batches, level: int) -> tuple[int, list[Cargo]]:
    """Read this partition's task index and cargo. The input of the first stage is one row with the index."""
    if level == 0:
        [index] = [value for batch in batches for value in batch.column(0).to_pylist()]
        return index, []
    cargo = [decode(value.as_buffer()) for batch in batches for value in batch.column(1)]
    return client.partition_index(), cargo


def _write(program: Program, level: int, task: int, sent: Iterable[Cargo]) -> Iterator[pa.RecordBatch]:
    last = level == len(program.stages) - 1
    targets: list[int] = []
    values: list[bytes] = []
    size = 0
    for cargo in sent:
        data = encode(cargo)
        for target in (0,) if last else destinations(program, level, task, cargo):
            targets.append(target)
            values.append(data)
            size += len(data)
        if size >= _FLUSH_BYTES:
            yield _rows(targets, values)
            targets, values, size = [], [], 0
    yield _rows(targets, values)


def _rows(targets: list[int], values: list[bytes]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(targets, pa.int32()), pa.array(values, pa.binary())], schema=SCHEMA)
