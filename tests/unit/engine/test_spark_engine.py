"""Spark engine: sessions, the exchange, cancellation, and the tables as other readers see them."""

import contextlib
import logging
import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import engine_samples as samples
import pytest
from engine_samples import chain, pack, program
from runs import CountWords, counting, ended

from txstorm import BasicBolt, TransactionalTopologyBuilder
from txstorm.api.context import WorkProgress
from txstorm.clients import spark as client
from txstorm.engine import spark as engine_module
from txstorm.engine.arrow import rows_of_batch
from txstorm.engine.spark import SparkEngine
from txstorm.errors import EngineError


def session(settings: dict[str, str]) -> Any:
    """Return a fake session with what `check_session` reads."""
    return SimpleNamespace(conf=SimpleNamespace(get=settings.get))


def test_unchangeable_spark_settings_are_reported_once_with_their_cost(caplog) -> None:
    known = session({"spark.scheduler.mode": "FIFO"})
    with caplog.at_level(logging.WARNING, "txstorm.engine.spark"):
        for _ in range(2):
            client.check_session(known)
    assert len(caplog.messages) == len(client.WANTED) == 3
    assert any("spark.scheduler.mode=FIFO instead of FAIR; that costs packs that" in one for one in caplog.messages)
    assert any(f"{client.UNIX_SOCKETS}=None instead of true; that costs about 50 ms" in one for one in caplog.messages)
    caplog.clear()
    client.check_session(session({key: wanted for key, (wanted, _) in client.WANTED.items()}))
    assert caplog.messages == []


class Builder:
    """A fake session builder that records the Python path with which a JVM would start."""

    def __init__(self, fails: bool) -> None:
        self.fails, self.path = fails, ""

    def appName(self, name: str):
        return self

    def config(self, key: str, value: str):
        return self

    def getOrCreate(self) -> None:
        self.path = os.environ["PYTHONPATH"]
        if self.fails:
            raise RuntimeError("no JVM")


@pytest.mark.parametrize("before", [None, "elsewhere"])
@pytest.mark.parametrize("fails", [False, True])
def test_only_spark_workers_inherit_the_drivers_path(monkeypatch, tmp_path, before, fails) -> None:
    builder = Builder(fails)
    monkeypatch.setattr("pyspark.sql.SparkSession.builder", builder)
    monkeypatch.setattr(client, "check_installed", lambda: None)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", before or "")
    if before is None:
        monkeypatch.delenv("PYTHONPATH")
    with pytest.raises(RuntimeError) if fails else contextlib.nullcontext():
        client.make_session("path")
    assert str(tmp_path) in builder.path.split(os.pathsep)
    assert builder.path.startswith(before or str(tmp_path))
    assert os.environ.get("PYTHONPATH") == before


@pytest.mark.parametrize("tasks", [1, 2, 3, 7, 64, 200])
def test_every_partition_has_an_integer_that_hashes_to_it(tasks: int) -> None:
    landing = client._landing(tasks)
    assert [client.murmur3_int(number) % tasks for number in landing] == list(range(tasks))


def test_job_failures_are_summarized_in_one_sentence() -> None:
    java = "An error occurred\n: org.apache.spark.SparkException: Job 3 cancelled part of group\n\tat x"
    assert client.explain_failure(Exception(java)).endswith("Job 3 cancelled part of group")
    assert client.explain_failure(Exception("first\n  at java\nsecond")) == "the Spark job failed: first | second"
    assert client.explain_failure(KeyError()) == "the Spark job failed: KeyError"


@pytest.fixture
def engine(spark: Any):
    made = SparkEngine(spark)
    made.start(program(chain()))
    yield made
    made.close()


@pytest.mark.spark
def test_murmur3_int_agrees_with_spark(spark: Any) -> None:
    numbers = [0, 1, 2, 41, -1, -7, 2**31 - 1, -(2**31)]
    frame = spark.createDataFrame([(number,) for number in numbers], "n INT").selectExpr("n", "hash(n) AS h")
    assert {row.n: row.h for row in frame.collect()} == {n: client.murmur3_int(n & 0xFFFFFFFF) for n in numbers}


@pytest.mark.spark
@pytest.mark.parametrize("fallback", [False, True], ids=["repartitionById", "spark-4.0"])
def test_exchange_routes_rows_to_their_partition_and_runs_empty_ones(spark: Any, fallback: bool) -> None:
    tasks = 5
    frame = spark.range(0, 40, 1, 3).selectExpr("CAST(id % 4 AS INT) AS target", "CAST(id AS STRING) AS cargo")

    def where(batches):
        rows = [row for batch in batches for row in batch.to_pylist()]
        got = [f"{row['target']}:{row['cargo']}" for row in rows]
        yield engine_module.pa.record_batch({"at": [client.partition_index()], "got": [" ".join(got)]})

    moved = client.exchange(Spark40Frame(frame) if fallback else frame, tasks, "target")
    found = {row.at: row.got.split() for row in moved.mapInArrow(where, "at LONG, got STRING").collect()}
    assert {at: sorted(got) for at, got in found.items()} == {
        task: sorted(f"{task}:{n}" for n in range(40) if n % 4 == task) for task in range(tasks)
    }


class Spark40Frame:
    """A fake DataFrame of Spark 4.0, which has no `repartitionById`."""

    def __init__(self, frame: Any) -> None:
        self._frame = frame

    def __getattr__(self, name: str) -> Any:
        if name == "repartitionById":
            raise AttributeError(name)
        return getattr(self._frame, name)


@pytest.mark.spark
def test_spark_and_local_engine_yield_equal_outcomes(engine: SparkEngine) -> None:
    given = pack([1, 2, 3, 19], [], [4, 13], [5])
    local = samples.processed(chain(), given)
    outcomes = engine.submit(given).result(timeout=120)
    assert [outcome.attempt for outcome in outcomes] == [outcome.attempt for outcome in local]
    for here, there in zip(local, outcomes, strict=True):
        assert (there.counts, there.digests, there.reported) == (here.counts, here.digests, here.reported)
        rows = [
            [list(rows_of_batch(one.batch)) for one in sorted(o.cargo, key=lambda c: c.order)] for o in (here, there)
        ]
        assert rows[0] == rows[1]
    assert outcomes[2].error is not None
    assert (outcomes[2].error.component, outcomes[2].error.type) == ("a", "FailedException")
    assert engine.describe()["engine"] == "spark"


class TracesCalls(BasicBolt):
    """A bolt that touches a file when it is loaded, prepared or executed; if `fatal`, loading kills any worker."""

    def __init__(self, directory: Path, fatal: bool) -> None:
        self.directory, self.fatal, self.driver = directory, fatal, os.getpid()

    def __setstate__(self, state):
        self.__dict__.update(state)
        (self.directory / f"loaded-{os.getpid()}").touch()
        if self.fatal and os.getpid() != self.driver:
            os.kill(os.getpid(), signal.SIGKILL)

    def prepare(self, context):
        (self.directory / "prepared").touch()

    def execute(self, tuple, collector):
        (self.directory / "executed").touch()


def files_after_warm_up(spark: Any, directory: Path, *, fatal: bool) -> set[str]:
    """Warm up an engine with one `TracesCalls` bolt; return the names of the files that its copies touched."""
    builder = TransactionalTopologyBuilder("telling", "numbers", samples.Rows())
    builder.set_bolt("telling", TracesCalls(directory, fatal)).shuffle_grouping("numbers")
    made = SparkEngine(spark)
    made.start(program(builder.build_topology()))
    made.warm_up()
    made.close()
    return {path.name for path in directory.iterdir()} - {f"loaded-{os.getpid()}"}


@pytest.mark.spark
@pytest.mark.parametrize("fatal", [False, True])
def test_warm_up_loads_user_code_without_calling_it(spark, tmp_path, caplog, fatal) -> None:
    """A worker that dies during warm-up only logs a warning."""
    told = files_after_warm_up(spark, tmp_path, fatal=fatal)
    assert {name.partition("-")[0] for name in told} == {"loaded"}
    assert [text.partition(" will take")[0] for text in caplog.messages] == ["the first packs"] * fatal


class Sleepy(BasicBolt):
    def __init__(self, directory):
        self.directory = directory

    def execute(self, tuple, collector):
        (self.directory / f"entered-{tuple['n']}").touch()
        while not (self.directory / f"leave-{tuple['n']}").exists():
            time.sleep(0.01)


@pytest.mark.spark
def test_cancelling_a_pack_ends_only_its_own_job(spark: Any, tmp_path: Path) -> None:
    builder = TransactionalTopologyBuilder("sleepy", "numbers", samples.Rows())
    builder.set_bolt("sleepy", Sleepy(tmp_path)).local_or_shuffle_grouping("numbers")
    made = SparkEngine(spark)
    made.start(program(builder.build_topology()))
    futures = [made.submit(pack([number], first=number)) for number in (1, 2)]
    end = time.monotonic() + 120
    while len(list(tmp_path.glob("entered-*"))) < 2:
        assert time.monotonic() < end
        time.sleep(0.01)
    assert made.how_far(futures[1]) == WorkProgress(done=0, tasks=1)
    group = made._groups[futures[1]][0]
    made.cancel(futures[0])
    with pytest.raises(EngineError, match="cancelled"):
        futures[0].result(timeout=120)
    assert not futures[1].done()
    (tmp_path / "leave-2").touch()
    assert futures[1].result(timeout=120)[0].error is None
    assert (client.tasks_done(spark, group), made.how_far(futures[1])) == (1, None)
    (tmp_path / "leave-1").touch()
    made.close()


def delta_rows(spark: Any, path: Path, *columns: str) -> list[Any]:
    return sorted(map(tuple, spark.read.format("delta").load(str(path)).select(*columns).collect()))


@pytest.mark.spark
def test_a_given_session_is_used_kept_open_and_can_read_the_tables(spark: Any, tmp_path: Path) -> None:
    handle = ended(counting("aba", CountWords(), tasks=2), tmp_path, "spark", spark=spark)
    assert spark.range(3).count() == 3
    assert delta_rows(spark, tmp_path / "state/counts", "word", "n") == [("a", 2), ("b", 1)]
    changes = delta_rows(spark, tmp_path / "changes/counts", "_txid", "word", "n")
    assert changes == [(1, "a", 1), (1, "b", 1), (2, "a", 2)]
    assert delta_rows(spark, tmp_path / "sinks/log", "_txid", "word") == [(1, "a"), (1, "b"), (2, "a")]
    shown = handle.state("counts").as_of(txid=1).to_spark(spark).collect()
    assert sorted((row.word, row.n) for row in shown) == [("a", 1), ("b", 1)]


@pytest.mark.spark
def test_without_a_given_session_the_one_of_the_process_is_shared(spark: Any, tmp_path: Path) -> None:
    assert ended(counting("a", tasks=2), tmp_path, "spark").committed == 1
    assert spark.range(3).count() == 3
