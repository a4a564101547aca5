"""Fixtures of all tests: one Spark session, and the engines a topology can run on."""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
from commands import Commands
from fast import Fast
from java_processes import JavaProcesses
from programs import close_loaded
from shared_session import Surroundings
from spread import Spread

if TYPE_CHECKING:
    from txstorm.engine.port import Engine

# No deadlines: the machine may be busy. The failing example is printed with what replays it.
hypothesis.settings.register_profile("txstorm", deadline=None, print_blob=True)
hypothesis.settings.register_profile("fast", parent=hypothesis.settings.get_profile("txstorm"), max_examples=20)
hypothesis.settings.load_profile("txstorm")

pytest_plugins = ["servers.fixtures"]

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts its background jobs with Ctrl-C ignored; the programs that tests start would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).resolve().parent.parent
CLASSES = ROOT / ".cache" / "spark.jsa"
if CLASSES.exists():
    # Sessions of all tests, also those of their programs, load the classes that `scripts/jars` archived. Without
    # messages: an archive that does not fit is passed over.
    os.environ.setdefault(
        "SPARK_SUBMIT_OPTS",
        f"-XX:SharedArchiveFile={CLASSES} -Xlog:disable -XX:+UseSerialGC -XX:TieredStopAtLevel=1"
        " -XX:ReservedCodeCacheSize=240m",
    )


def delta_jars() -> str:
    """The jars of Delta and of Spark's Kafka source that `scripts/jars` has fetched, as ``spark.jars`` takes them."""
    jars = [jar for place in ("jars", "connector-jars") for jar in sorted((ROOT / ".cache" / place).glob("*.jar"))]
    if not jars:
        pytest.fail("no jars in .cache; run scripts/jars")
    return ",".join(map(str, jars))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--jvm-budget", action="store_true", help="fail if more JVMs were started than the budget")
    help_text = "leave out costly tests, Spark, servers and other processes (tests/helpers/fast.py)"
    parser.addoption("--fast", action="store_const", const="all", help=help_text)


def pytest_configure(config: pytest.Config) -> None:
    """Register the distribution of the tests, what ``--fast`` leaves out, and the count of their Java processes."""
    gc.disable()  # until all tests are collected: of the objects made until then, all stay
    config.pluginmanager.register(Spread(config))
    config.pluginmanager.register(Fast(config), "fast")
    if not config.option.fast and not hasattr(config, "workerinput") and Path("/proc/self/environ").exists():
        config.pluginmanager.register(JavaProcesses())


def pytest_collection_finish() -> None:
    """Take modules and tests out of the garbage collector's sight: half a million objects, which stay."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """Yield one Spark session for all tests, with Delta, created as txstorm creates its own."""
    from txstorm.clients.spark import make_session

    session = make_session(
        "txstorm tests",
        extra={
            "spark.jars": delta_jars(),
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
            "spark.databricks.delta.snapshotPartitions": "1",
            "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
        },
    )
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def _surroundings(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let a test on Spark fail that leaves the shared session or its process other than it was; restore both."""
    if request.node.get_closest_marker("spark") is None:
        yield
        return
    request.getfixturevalue("spark")  # else a test that starts a session of its own leaves it, without Delta, to others
    before = Surroundings.now()
    yield
    if changes := before.changes():
        before.restore()
        pytest.fail(f"the test has changed {changes}", pytrace=False)


@pytest.fixture(scope="session", autouse=True)
def _programs() -> Iterator[None]:
    yield
    close_loaded()


@pytest.fixture(params=["local", pytest.param("spark", marks=pytest.mark.spark)])
def make_engine(request: pytest.FixtureRequest) -> Callable[[], Engine]:
    """Return a function that creates an engine; its tests run once on threads and once on Spark."""
    if request.param == "local":
        from txstorm.engine.local import LocalEngine

        return LocalEngine
    from txstorm.engine.spark import SparkEngine

    session = request.getfixturevalue("spark")
    return lambda: SparkEngine(session)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Any]:
    """Yield a running PostgreSQL server (`postgres_server.Postgres`); a test that stops it must restart it."""
    from postgres_server import Postgres

    server = Postgres()
    try:
        server.start()
        yield server
    finally:
        server.close()


@pytest.fixture
def progress(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Return a function that prints a line at once, with the test's elapsed seconds, despite output capture."""
    capture = request.config.pluginmanager.getplugin("capturemanager")
    began = time.monotonic()

    def show(line: str) -> None:
        with capture.global_and_fixture_disabled():
            print(f"\n    {time.monotonic() - began:6.1f} s  {line}", end="", flush=True)

    return show


@pytest.fixture(autouse=True)
def _no_faults() -> Iterator[None]:
    from txstorm import faults

    yield
    faults.arm("")


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Commands:
    """Return an object that runs commands of txstorm in this process."""
    return Commands(capsys, monkeypatch)


@pytest.fixture
def in_tmp(tmp_path: Path) -> Iterator[Path]:
    before = Path.cwd()
    os.chdir(tmp_path)
    yield tmp_path
    os.chdir(before)
