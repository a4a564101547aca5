"""Commands on this machine: ``txstorm doctor`` checks what runs need, and tries both engines with a small topology.

``txstorm archive-classes`` makes Spark start faster; ``txstorm simulate`` checks the protocol in simulated worlds.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from txstorm.cli.options import Json, show
from txstorm.clients import class_archive
from txstorm.errors import InputError

ENGINES = ("local", "spark")


def doctor(json: Json = False) -> int:
    """Check what is installed, how to get what is missing, and whether both engines work.

    Exit code 0 if topologies can run on at least one engine, else 1.
    """
    from rich.text import Text

    from txstorm.cli.output import print_json, stderr, stdout

    console, found = stdout(), []
    for check in all_checks(lambda what: stderr().print(f"{what} …", style="dim")):
        found.append(check)
        if not json:
            console.print(Text.assemble(_mark(check), f" {check.name}: {check.found}"), soft_wrap=True)
            if not check.ok and check.remedy:
                console.print(Text(f"    → {check.remedy}", "yellow"), soft_wrap=True)
    working = engines(found)
    if json:
        print_json({"ok": bool(working), "engines": working, "checks": [asdict(check) for check in found]})
    else:
        console.print(verdict(working), soft_wrap=True)
    return 0 if working else 1


def archive_classes(
    delete: Annotated[bool, typer.Option("--delete", help="Delete the archives of this user instead.")] = False,
    json: Json = False,
) -> None:
    """Archive the Java classes that a Spark session loads: sessions then start in about half the time.

    Needed once per user, Java and Spark; takes up to a minute and 200 MB in ~/.cache/txstorm (or XDG_CACHE_HOME). All
    sessions that txstorm starts use the archive; for others, such as those of spark-submit, it prints the option.

    Example: txstorm archive-classes
    """
    from txstorm.cli.output import stderr
    from txstorm.clients.spark import check_installed, make_session

    if delete:
        deleted = [str(one) for one in class_archive.delete_archives()]
        show({"deleted": deleted}, *(f"deleted {one}" for one in deleted), as_json=json)
        return
    check_installed()
    found = class_archive.archive()
    if found is None or not found.exists():
        stderr().print("archiving the classes of Spark, up to a minute …", style="dim")
        found = class_archive.make_archive(lambda java: make_session("txstorm archive-classes", java=java))
    options = class_archive.java_options()
    if not options:
        msg = f"{found}: expected a file that only you can write; delete it with txstorm archive-classes --delete"
        raise InputError(msg)
    size = found.stat().st_size
    document = {"archive": str(found), "bytes": size, "java_options": options}
    submit = f"spark-submit --driver-java-options '{options}'"
    show(document, f"{found} ({size / 1e6:.0f} MB)", submit, as_json=json)


def engines(checks: Sequence[Check]) -> list[str]:
    """Return the names of the engines that were tried and work."""
    working = {check.name for check in checks if check.ok}
    return [name for name in ENGINES if f"engine {name}" in working]


def verdict(working: Sequence[str]) -> str:
    """Return the overall result as a sentence, given the names of the working engines."""
    if not working:
        return "Topologies cannot run here yet."
    if len(working) == len(ENGINES):
        return "Everything works."
    missing = next(name for name in ENGINES if name not in working)
    return f"Topologies run with --engine {working[0]}; {missing} needs what is marked above."


def _mark(check: Check) -> tuple[str, str]:
    if check.ok:
        return "✓", "green"
    return ("✗", "red") if check.needed_for else ("–", "dim")


GIB = 1 << 30
LEAST_DISK = 1 * GIB
JAVA = 17
APT_JAVA = "apt-get install openjdk-17-jre-headless (or default-jre-headless)"
BREW_JAVA = "brew install openjdk@17"


@dataclass(frozen=True)
class Check:
    """Result of one check of ``txstorm doctor``.

    Attributes:
        name: the subject of the check.
        ok: whether the check succeeded.
        found: the version or location found, or the fault.
        remedy: what to do if the check failed.
        needed_for: ``runs``, ``spark``, or empty for an optional requirement.
    """

    name: str
    ok: bool
    found: str
    remedy: str = ""
    needed_for: str = "runs"


@dataclass(frozen=True)
class Package:
    """A required package and its supported versions: from `low` up to, but excluding, `high`."""

    name: str
    low: str
    high: str | None
    extra: str
    needed_for: str


# As in setup.cfg; a test compares them.
PACKAGES = (
    Package("pyarrow", "18", None, "", "runs"),
    Package("deltalake", "1.6.6", "2", "", "runs"),
    Package("pyspark", "4.0.1", "4.2.1", "spark", "spark"),
    Package("pandas", "2.2", "3", "spark", "spark"),
)


def _checked(name: str, ok: bool, found: str, remedy: str, needed_for: str = "runs") -> Check:
    return Check(name, ok, found, "" if ok else remedy, needed_for)


def python() -> Check:
    """Check the version of Python."""
    found = f"{platform.python_version()} at {sys.executable}"
    return _checked("Python", sys.version_info >= (3, 11), found, "use Python 3.11 or newer")


def package(one: Package) -> Check:
    """Check that a package is installed in a supported version."""
    wanted = f">={one.low}" + (f",<{one.high}" if one.high else "")
    remedy = f"pip install 'txstorm[{one.extra}]'" if one.extra else "pip install --force-reinstall txstorm"
    try:
        version = importlib.metadata.version(one.name)
    except importlib.metadata.PackageNotFoundError:
        return Check(one.name, False, "not installed", remedy, one.needed_for)
    if fits(version, one):
        return Check(one.name, True, version, needed_for=one.needed_for)
    return Check(one.name, False, f"{version}, expected {wanted}", f"pip install '{one.name}{wanted}'", one.needed_for)


def fits(version: str, one: Package) -> bool:
    """Return whether `version` of a package is supported."""
    number = _numbers(version)
    return number >= _numbers(one.low) and (one.high is None or number < _numbers(one.high))


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def java() -> Check:
    """Check the version of the Java runtime that Spark would start."""
    home, path = os.environ.get("JAVA_HOME"), class_archive.java_program()
    remedy = BREW_JAVA if sys.platform == "darwin" else APT_JAVA
    if path is None:
        if home:
            return Check("Java", False, f"none in JAVA_HOME={home}", "unset JAVA_HOME or point it to Java 17", "spark")
        return Check("Java", False, "none on PATH", remedy, "spark")
    version = _java_version(path)
    if version is None:
        return Check("Java", False, f"{path} does not report its version", remedy, "spark")
    number = _numbers(version)
    ok = bool(number) and number[0] >= JAVA
    return _checked("Java", ok, f"{version} at {path}", f"Spark needs {JAVA} or newer: {remedy}", "spark")


def _java_version(path: str) -> str | None:
    try:
        done = subprocess.run([path, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "([^"]+)"', done.stderr + done.stdout)
    return found[1] if found else None


def delta_jars() -> Check:
    """Check that Delta's jars exist: Spark needs them to read tables, and to write tables whose writer is ``spark``."""
    jars = sorted(jar.name for place in _jar_places() for jar in place.glob("*delta-spark*.jar"))
    extra = "pip install 'txstorm[delta-spark]', spark.jars.packages fetches them"
    remedy = f"only to read the tables with Spark, or to write them: {extra}"
    return _checked("Delta jars", bool(jars), ", ".join(dict.fromkeys(jars)) or "none", remedy, "")


def _jar_places() -> Iterator[Path]:
    spark = importlib.util.find_spec("pyspark")
    if spark is not None and spark.origin is not None:
        yield Path(spark.origin).parent / "jars"
    yield Path.cwd() / ".cache" / "jars"
    yield from Path.home().glob(".ivy2*/jars")


def classes() -> Check:
    """Check that the classes of Spark are archived, so that sessions start faster."""
    found = class_archive.archive()
    remedy = "to start Spark in half the time: txstorm archive-classes"
    there = found is not None and found.exists()
    return _checked("archived classes", there, str(found) if there else "none", remedy, "")


def disk() -> Check:
    """Check that the current directory has enough disk space for tables."""
    here = Path.cwd()
    free = shutil.disk_usage(here).free
    found = f"{free / GIB:.1f} GiB free in {here}"
    if not os.access(here, os.W_OK):
        return Check(
            "disk",
            False,
            f"{here} cannot be written to",
            "change to a directory that you can write to, or use --data-dir",
        )
    return _checked("disk", free >= LEAST_DISK, found, "free some space, or use --data-dir on another disk")


def engine(name: str) -> Check:
    """Check that a small topology runs on engine `name`."""
    from txstorm.cli.commands.probe import try_engine

    needed = "spark" if name == "spark" else "runs"
    try:
        with tempfile.TemporaryDirectory(prefix="txstorm-doctor-") as directory:
            try_engine(name, Path(directory))
    except Exception as error:  # noqa: BLE001 - any error is the result of this check
        found = f"{type(error).__name__}: {error}"
        return Check(f"engine {name}", False, found, "resolve this error and the faults above", needed)
    return Check(f"engine {name}", True, "a small topology ran", needed_for=needed)


def all_checks(started: Callable[[str], None]) -> Iterator[Check]:
    """Run all checks and yield their results; `started` is called with a message before each slow one.

    Spark is not tried if something it needs is missing.
    """
    yield python()
    spark_missing = []
    packages: list[Callable[[], Check]] = [partial(package, one) for one in PACKAGES]
    for one in (java, *packages):
        check = one()
        if check.needed_for == "spark" and not check.ok:
            spark_missing.append(check.name)
        yield check
    yield delta_jars()
    if not spark_missing:
        yield classes()
    yield disk()
    started("engine local: running a small topology")
    yield engine("local")
    if spark_missing:
        yield Check("engine spark", False, f"not tried: needs {', '.join(spark_missing)}", "see above", "spark")
        return
    started("engine spark: running a small topology")
    yield engine("spark")


def simulate(
    schedules: Annotated[int, typer.Option("--schedules", help="Number of simulated worlds to run.")] = 10_000,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the random schedules.")] = 0,
    processes: Annotated[int, typer.Option("--processes", help="Number of processes; does not change the result.")] = 1,
    first: Annotated[int, typer.Option("--first", help="Number of the first world, to continue an earlier call.")] = 0,
    exhaustive: Annotated[
        int,
        typer.Option("--exhaustive", help="Instead: all small worlds with up to N faults, 1 to 3."),
    ] = 0,
    kind: Annotated[
        str,
        typer.Option(
            "--kind", help="Instead: worlds of a whole topology: counts, or MODULE:CLASS with a WorldKind of yours."
        ),
    ] = "",
    json: Json = False,
) -> int:
    """Run the real protocol in simulated worlds with faults of every kind, and check that exactly once holds.

    Exit code 0 if no invariant was broken, else 1; then the smallest schedules that break one are shown.
    """
    from txstorm.cli.output import print_json, stderr
    from txstorm.simulation import searched, story
    from txstorm.simulation import simulate as run
    from txstorm.simulation.search import STORIES

    report = searched(exhaustive) if exhaustive else run(schedules, seed, processes, first, kind=kind)
    for found in report.found[:STORIES]:
        stderr().print(story(found), markup=False, highlight=False, soft_wrap=True)
    if json:
        print_json(report.to_json())
    else:
        print("\n".join(_lines(report.to_json())))
    return 1 if report.found else 0


def _lines(found: Mapping[str, object]) -> Iterator[str]:
    for name, value in found.items():
        if isinstance(value, dict):
            yield f"{name}:"
            width = max(map(len, value))
            yield from (f"  {one:{width}}  {_text(counts)}" for one, counts in value.items())
        else:
            yield f"{name}: {value}"


def _text(counts: object) -> str:
    return ", ".join(f"{kind} {times}" for kind, times in counts.items()) if isinstance(counts, dict) else f"{counts}"
