"""Rules of the project: code budgets, allowed imports, content of the wheel, and a single version number."""

import ast
import configparser
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "txstorm"
MODULES = sorted(PACKAGE.rglob("*.py"))
Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def walked(path: Path) -> Sequence[ast.AST]:
    return [*ast.walk(parsed(path))]


def nodes(path: Path, kind: Any) -> list[Any]:
    return [node for node in walked(path) if isinstance(node, kind)]


def docstring(path: Path) -> str:
    return ast.get_docstring(parsed(path)) or ""


BY_THEMSELVES = {
    "lanes.py": "the lanes of a run are threads, and its clocks those of the machine",
    "faults.py": "an injected fault may hang",
    "notebook.py": "shows progress at intervals of real time",
    "cli": "commands measure and wait in the user's own process",
    "clients": "libraries of outside systems have time limits and threads of their own",
    "engine": "tasks measure their work; Spark's jobs are awaited by a pool",
    "ledger": "leases expire by real time, and are renewed beside the run",
    "monitor": "listeners are called on a thread of their own, so that user code delays nothing",
    "spouts/kafka": "readers of brokers, as in clients",
    "testing": "check suites race on real threads",
    "web": "servers",
}
"""Parts of the package that start threads, sleep or read clocks by themselves, and why. All others do it by `Lanes`."""
CALLS = {
    "threading": {"Thread", "Timer"},
    "time": {"sleep", "time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "process_time", "thread_time"},
    "datetime": {"now", "utcnow", "today"},
}
NAMES = {"start_thread", "ThreadPoolExecutor", "utc_now"}


def test_threads_sleep_and_clocks_come_from_lanes():
    for path in MODULES:
        if any(path.relative_to(PACKAGE).is_relative_to(part) for part in BY_THEMSELVES):
            continue
        assert NAMES & {alias.name for node in nodes(path, ast.ImportFrom) for alias in node.names} == set(), path
        attributes = [node for node in nodes(path, ast.Attribute) if isinstance(node.value, ast.Name)]
        assert [node.lineno for node in attributes if node.attr in CALLS.get(node.value.id, ())] == [], path


def function_lengths() -> Iterator[tuple[int, str]]:
    """Yield the length in lines and the name of every function, from `def` to its end, without its docstring."""
    for path in MODULES:
        for node in nodes(path, Function):
            body = node.body[0]
            described = 0 if ast.get_docstring(node) is None else body.end_lineno - body.lineno + 1
            yield node.end_lineno - node.lineno + 1 - described, f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"


def test_function_budget():
    """No function exceeds the length limit; there is no quota for shorter ones."""
    assert [entry for entry in sorted(function_lengths(), reverse=True) if entry[0] > 50] == []


CALLED_BY_USERS = {
    "cli/commands/dadstorm/run_network.py: run_network": "options of the command line",
    "cli/commands/hailstorm_commands.py: run_sample": "options of the command line",
    "cli/commands/stores_and_delay.py: collect": "options of the command line",
    "cli/commands/stores_and_delay.py: store_server": "options of the command line",
    "cli/commands/replay.py: replay": "options of the command line",
    "cli/commands/run.py: run": "options of the command line",
    "cli/commands/time_travel.py: rewind": "options of the command line",
    "cli/commands/event_time.py: windows": "options of the command line",
    "joins/side.py: Side.__init__": "keyword-only options of a side",
    "runtime/run.py: run": "keyword-only options of a run",
    "sinks/kafka.py: KafkaSink.__init__": "keyword-only options of a sink",
    "spouts/files/spout.py: FileSpout.__init__": "keyword-only options of a spout",
    "spouts/kafka/spout.py: TransactionalKafkaSpout.__init__": "keyword-only options of a spout",
}
"""Functions that users call, or the command line for them, and what their many parameters are."""


def parameter_counts() -> Iterator[tuple[str, int]]:
    """Yield the parameter count of every written function, without `self` and `cls`; generated ones are excluded."""
    for path in MODULES:
        classes = {id(child): f"{node.name}." for node in nodes(path, ast.ClassDef) for child in node.body}
        for node in nodes(path, Function):
            every = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
            every += [argument for argument in (node.args.vararg, node.args.kwarg) if argument is not None]
            name = f"{path.relative_to(PACKAGE).as_posix()}: {classes.get(id(node), '')}{node.name}"
            yield name, sum(argument.arg not in ("self", "cls") for argument in every)


def test_parameter_budget():
    """Values that travel together are bundled; only calls that users write out may have more than seven."""
    assert {name for name, parameters in parameter_counts() if parameters > 7} == set(CALLED_BY_USERS)


def test_file_budget():
    """A module of more than 400 lines explains in its docstring why it is one module; 600 lines is the limit."""
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in MODULES}
    assert {path: lines for path, lines in lengths.items() if lines > 600} == {}
    long = [path for path, lines in lengths.items() if lines > 400]
    assert [path for path in long if "one module" not in " ".join(docstring(path).split())] == []


GROUND = set(
    "api keys faults errors user_code display masks tagged typed misfits ddl lanes row_order allocator clocks _version".split()
)
"""Open to every room."""
PORT_NOUNS = {"spout.py", "ranges.py", "ledger.py", "lease.py", "location.py", "open.py"}
"""Names that the backends of one port share."""


def rooms() -> list[str]:
    return sorted(path.parent.relative_to(PACKAGE).as_posix() for path in PACKAGE.glob("*/**/__init__.py"))


def allowed_imports(room: str) -> list[str] | None:
    """Return the rooms in the "May import" line of `room`; None: all that the layers of setup.cfg allow."""
    listed = re.search(r"May import: (.*?)\. Start: ", " ".join(docstring(PACKAGE / room / "__init__.py").split()))[1]
    if "below" in listed or "may import" in listed:
        return None
    return [] if listed == "nothing else" else [one.strip().replace(".", "/") for one in re.split(r",| and ", listed)]


def imported_modules(path: Path) -> Iterator[str]:
    """Yield the modules and packages of txstorm that the file at `path` imports, as paths below the package."""
    for node in nodes(path, ast.ImportFrom):
        if node.module and node.module.split(".")[0] == "txstorm":
            parent = PACKAGE.joinpath(*node.module.split(".")[1:])
            for name in node.names:
                inner = parent / name.name
                found = inner if inner.is_dir() or inner.with_suffix(".py").exists() else parent
                yield found.relative_to(PACKAGE).as_posix()


@pytest.mark.parametrize("room", rooms())
def test_a_room_imports_what_its_docstring_says(room: str):
    allowed = allowed_imports(room)
    if allowed is None:
        return
    foreign = {
        f"{path.name}: {module}"
        for path in (PACKAGE / room).glob("*.py")
        for module in imported_modules(path)
        if module != "."
        and module.split("/")[0] not in GROUND
        and not any(f"{module}/".startswith(f"{one}/") for one in (*allowed, room))
    }
    assert foreign == set()


@pytest.mark.parametrize("room", rooms())
def test_a_room_has_a_place_to_start_and_at_most_twelve_modules(room: str):
    _, start, where = docstring(PACKAGE / room / "__init__.py").rpartition("Start: ")
    starts = re.findall(r"[\w/]+\.py", where)
    assert start and starts
    assert all((PACKAGE / room / start).exists() for start in starts)
    assert len(list((PACKAGE / room).glob("[!_]*.py"))) <= 12


def test_file_names_are_unique_within_a_wing():
    names = [(path.relative_to(PACKAGE).parts[0], path.name) for path in PACKAGE.glob("*/**/[!_]*.py")]
    assert {one for one in names if names.count(one) > 1 and one[1] not in PORT_NOUNS} == set()


def test_class_names_are_unique_within_a_wing():
    modules = [(path.relative_to(PACKAGE).parts[0], path) for path in PACKAGE.glob("*/**/*.py")]
    names = [(wing, node.name) for wing, path in modules for node in nodes(path, ast.ClassDef)]
    assert {name for name in names if names.count(name) > 1} == set()


def setup_cfg() -> configparser.ConfigParser:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg", encoding="utf-8")
    return config


def normal(requirement: str) -> str:
    return re.split(r"[^A-Za-z0-9._-]", requirement)[0].lower().replace("_", "-")


def test_constraints_pin_every_requirement():
    config = setup_cfg()
    texts = [config["options"]["install_requires"], *config["options.extras_require"].values()]
    required = {normal(line) for text in texts for line in text.splitlines() if line}
    pinned = {normal(line) for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line}
    assert required - pinned == {"txstorm"}
    extras = {
        name: {normal(line) for line in text.splitlines() if line}
        for name, text in config["options.extras_require"].items()
    }
    connect = {normal(one) for one in importlib.metadata.requires("pyspark") or () if 'extra == "connect"' in one}
    assert connect - {"numpy"} <= extras["spark"] | extras["connect"]


@pytest.mark.parametrize(
    "script", ["check", "test", "test-long", "demo", "bench", "jars", "kafka", "mutants", "zookeeper"]
)
def test_scripts_can_be_run(script: str):
    assert os.access(ROOT / "scripts" / script, os.X_OK)
    subprocess.run(["bash", "-n", ROOT / "scripts" / script], check=True)


def test_long_tests_are_run_when_asked_for():
    """`scripts/test-long` asks for them; each of its parts fails if it finds none."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    made = subprocess.run([*command, "tests/kafka/test_kafka_million.py"], cwd=ROOT, capture_output=True, check=False)
    assert made.returncode == pytest.ExitCode.NO_TESTS_COLLECTED


def version() -> str:
    namespace: dict[str, str] = {}
    exec((PACKAGE / "_version.py").read_text(encoding="utf-8"), namespace)
    return namespace["__version__"]


def test_version_has_one_source():
    assert setup_cfg()["metadata"]["version"] == "attr: txstorm._version.__version__"
    literal = re.compile(rf"""["']{re.escape(version())}["']""")
    assert [path.name for path in MODULES if literal.search(path.read_text(encoding="utf-8"))] == ["_version.py"]


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    """Run a command that must succeed; if it fails, show its output."""
    done = subprocess.run(command, cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a clean copy of the project: builds leave files beside the sources, and old ones would be packaged."""
    copy = tmp_path_factory.mktemp("source") / "project"
    unwanted = shutil.ignore_patterns(
        ".*", "*.egg-info", "__pycache__", "build", "dist", "txstorm-data", "spark-warehouse"
    )
    shutil.copytree(ROOT, copy, ignore=unwanted)
    return copy


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", target, ".", cwd=source)
    (built,) = target.glob("*.whl")
    return built


@pytest.mark.integration
@pytest.mark.slow
def test_wheel_holds_the_package_alone(wheel: Path):
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {name.split("/")[0] for name in names} == {"txstorm", f"txstorm-{version()}.dist-info"}
    assert "txstorm/py.typed" in names
    assert {str(path.relative_to(ROOT)) for path in MODULES} == {name for name in names if name.endswith(".py")}


@pytest.fixture(scope="module")
def empty_environment(source: Path, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return `bin` of an environment in which only the wheel was installed, with `pip install`."""
    home = tmp_path_factory.mktemp("venv")
    venv.create(home)
    install = ["--python", home / "bin" / "python", "install", "--no-compile", "-c", "constraints.txt", wheel]
    # Where a Python path leads to the project, pip finds it installed already.
    run(sys.executable, "-m", "pip", *install, cwd=source, PYTHONPATH="")
    return home / "bin"


VERSIONS = [
    ["python", "-c", "import txstorm; print(txstorm.__version__)"],
    ["python", "-c", "import importlib.metadata; print(importlib.metadata.version('txstorm'))"],
    ["python", "-m", "txstorm", "--version"],
    ["txstorm", "--version"],
]


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_installed_without_java_and_spark(empty_environment: Path, tmp_path: Path):
    hidden = {"PATH": str(empty_environment), "JAVA_HOME": "", "SPARK_HOME": "", "PYTHONPATH": ""}
    for program, *arguments in VERSIONS:
        assert version() in run(empty_environment / program, *arguments, cwd=tmp_path, **hidden)
    find = "import importlib.util as u; print([n for n in ('pyspark', 'delta', 'pandas') if u.find_spec(n)])"
    assert run(empty_environment / "python", "-c", find, cwd=tmp_path).strip() == "[]"
