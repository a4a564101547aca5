"""Sides that run jobs: txstorm and its peers, their guarantees, and their installation."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.suite.job import Job
from benchmarks.suite.sides import ROOT

CACHE = ROOT / ".cache"
HOME = CACHE / "peers"
JARS = CACHE / "jars"
Say = Callable[[str], None]


class NotInstalled(Exception):
    """A peer cannot run here; the reason is reported in its place."""


@dataclass(frozen=True)
class Peer:
    """One side of comparisons.

    Attributes:
        guarantee: its guarantee, as printed beside its numbers.
        command: command of the process that serves its jobs.
        install: installs what it needs, and reports that. Not measured.
        warm_up: a job that is not measured, run before all others, since a JVM has to load and compile classes first.
            Except in a quick run, it is repeated until the duration of commits is steady.
    """

    name: str
    guarantee: str
    command: Sequence[str]
    install: Callable[[Say], None]
    warm_up: Job | None = None


def _nothing(say: Say) -> None:
    """Do nothing: the environment of the benchmarks suffices."""


def _run(say: Say, what: str, *command: str | Path) -> None:
    say(what)
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError as error:
        msg = f"{what}: {error}"
        raise NotInstalled(msg) from error
    if done.returncode:
        lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        msg = f"{what}: {lines[-1].strip() if lines else f'exit code {done.returncode}'}"
        raise NotInstalled(msg)


def _delta_jars(say: Say) -> None:
    if not any(JARS.glob("delta-spark_*.jar")):
        _run(say, "fetching Delta's jars", ROOT / "scripts" / "jars", "delta")


def _environment(name: str, *requirements: str) -> Callable[[Say], None]:
    """Return an installer of a separate environment, for peers that pin their requirements."""

    def install(say: Say) -> None:
        home, stamp = HOME / name, HOME / name / "installed"
        if stamp.exists() and stamp.read_text().split() == list(requirements):
            return
        say(f"installing {' '.join(requirements)} into {home.relative_to(ROOT)}")
        _run(say, f"making {home.name}", sys.executable, "-m", "venv", "--clear", home)
        pip = [str(home / "bin" / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        _run(say, f"pip install {' '.join(requirements)}", *pip, *requirements)
        stamp.write_text(" ".join(requirements))

    return install


def _compiled(name: str, what: str, jar: str) -> Callable[[Say], None]:
    """Return an installer of a peer in Java: it fetches its jars, and compiles the sources if they have changed."""

    def install(say: Say) -> None:
        jars, classes, place = HOME / name, HOME / f"{name}-classes", ROOT / "benchmarks" / "peers" / name
        if not any(jars.glob(jar)):
            _run(say, f"fetching the jars of {what}", ROOT / "scripts" / "jars", name)
        sources = sorted(place.glob("*.java"))
        text = "".join(source.read_text() for source in sources)
        stamp = classes / "sources.txt"
        if stamp.exists() and stamp.read_text() == text:
            return
        if shutil.which("javac") is None:
            msg = f"the programs for {what} are Java: a JDK with javac is needed, there is only a Java runtime"
            raise NotInstalled(msg)
        classes.mkdir(parents=True, exist_ok=True)
        _run(say, f"compiling for {what}", "javac", "-nowarn", "-d", classes, "-cp", f"{jars}/*", *sources)
        if (place / "META-INF").exists():
            shutil.copytree(place / "META-INF", classes / "META-INF", dirs_exist_ok=True)
        stamp.write_text(text)

    return install


def _python(module: str, *arguments: str, home: str = "") -> list[str]:
    python = str(HOME / home / "bin" / "python") if home else sys.executable
    return [python, "-m", f"benchmarks.peers.{module}", *arguments]


WARM = Job("words", 1_000, 200)
WARM_MERGE = Job("words", 1_000, 4)

MERGE = "exactly once per table while a batch replays as it was"
BYTEWAX = _environment("bytewax", "bytewax==0.21.1", "numpy", "pyarrow")
STORM = _compiled("storm", "Storm", "storm-core-*.jar")
FLINK = _compiled("flink", "Flink SQL", "flink-table-planner_*.jar")
_PEERS = (
    Peer(
        "txstorm",
        "exactly once, all tables at one txid, strong txid order, durable",
        _python("ours", "spark"),
        _nothing,
        WARM,
    ),
    Peer("merge", f"{MERGE}; durable", _python("structured", "merge", str(JARS)), _delta_jars, WARM_MERGE),
    Peer(
        "append",
        f"{MERGE}; changes only, readers add them up; durable",
        _python("structured", "append", str(JARS)),
        _delta_jars,
        WARM_MERGE,
    ),
    Peer("loop", f"{MERGE}; one process, nothing is retried; durable", _python("loop"), _nothing),
    Peer("bytewax", "none: state in memory, lost with the process", _python("bytewax_flow", home="bytewax"), BYTEWAX),
    Peer(
        "bytewax-recovery",
        "state exactly once, output at least once; snapshots in SQLite every second",
        _python("bytewax_flow", "recovery", home="bytewax"),
        BYTEWAX,
    ),
    *(
        Peer(
            f"pyflink-{mode}",
            "state exactly once by checkpoints every second; no Delta sink",
            _python("pyflink_job", mode, home="pyflink"),
            _environment("pyflink", "apache-flink==2.3.0"),
        )
        for mode in ("process", "thread")
    ),
    *(
        Peer(
            name,
            "exactly once while the process lives: state in memory",
            _python("storm_cluster", name, str(HOME)),
            STORM,
        )
        for name in ("storm", "trident")
    ),
    Peer("kafka-txstorm", "exactly once, in txid order, durable", _python("kafka", "txstorm", "spark"), _nothing),
    Peer("kafka-loop", "exactly once, one process, durable", _python("kafka", "loop"), _nothing),
    Peer(
        "txstorm-local",
        "exactly once, all tables at one txid, strong txid order, durable; one process, no Spark",
        _python("ours", "local"),
        _nothing,
    ),
    Peer(
        "flink",
        "state exactly once by checkpoints every second; results are only added up",
        _python("nexmark_flink", str(HOME)),
        FLINK,
    ),
    Peer("nexmark-loop", "none: state in memory, one core", _python("nexmark_loop"), _nothing),
    Peer(
        "nexmark-bytewax",
        "none: state in memory, lost with the process",
        _python("nexmark_bytewax", home="bytewax"),
        BYTEWAX,
    ),
    Peer(
        "structured",
        "exactly once while a batch replays as it was; state in RocksDB; durable",
        _python("nexmark_structured", str(JARS)),
        _delta_jars,
    ),
    Peer("join-loop", "none: state in memory, one core", _python("join_loop"), _nothing),
    Peer("join-arrays", "none: state in memory, one core", _python("join_arrays"), _nothing),
    Peer(
        "join-bytewax",
        "none: state in memory, lost with the process",
        _python("join_bytewax", home="bytewax"),
        BYTEWAX,
    ),
    Peer(
        "join-structured",
        "exactly once while a batch replays as it was; state in RocksDB; durable",
        _python("join_structured", str(JARS)),
        _delta_jars,
    ),
    Peer(
        "lookup-structured",
        "exactly once while a batch replays as it was; durable",
        _python("lookup_structured", str(JARS)),
        _delta_jars,
    ),
    Peer(
        "kafka-merge",
        "at least once, durable",
        _python("kafka", "merge", str(JARS), str(CACHE / "connector-jars")),
        _delta_jars,
    ),
)
PEERS: Mapping[str, Peer] = {one.name: one for one in _PEERS}


def peers_on(engine: str) -> Mapping[str, Peer]:
    """Return the peers, with txstorm on the engine ``spark``, or ``local`` for trials, which has no JVM to warm up."""
    if engine == "spark":
        return PEERS
    return {
        name: replace(one, command=[*one.command[:-1], engine], warm_up=None) if name.endswith("txstorm") else one
        for name, one in PEERS.items()
    }
