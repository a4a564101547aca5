"""What a run needs, and whether it is there; each check says how to get what is missing."""

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
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

GIB = 1 << 30
LEAST_DISK = 1 * GIB
JAVA = 17
APT_JAVA = "apt-get install openjdk-17-jre-headless (or default-jre-headless)"
BREW_JAVA = "brew install openjdk@17"


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    Attributes:
        needed_for: ``runs``, ``spark``, or empty for what is only good to have.
        found: what is there, or what is wrong.
        remedy: what to do when it is not `ok`.
    """

    name: str
    ok: bool
    found: str
    remedy: str = ""
    needed_for: str = "runs"


@dataclass(frozen=True)
class Package:
    """A package and the versions that work: from `low` on, below `high`."""

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
    """The interpreter."""
    found = f"{platform.python_version()} at {sys.executable}"
    return _checked("Python", sys.version_info >= (3, 11), found, "use Python 3.11 or newer")


def package(one: Package) -> Check:
    """Whether a package is installed in a version that works."""
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
    """Whether `version` is one that works."""
    number = _numbers(version)
    return number >= _numbers(one.low) and (one.high is None or number < _numbers(one.high))


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def java() -> Check:
    """The Java that Spark would start."""
    home = os.environ.get("JAVA_HOME")
    path = shutil.which(os.path.join(home, "bin", "java") if home else "java")
    remedy = BREW_JAVA if sys.platform == "darwin" else APT_JAVA
    if path is None:
        if home:
            return Check("Java", False, f"none in JAVA_HOME={home}", "unset JAVA_HOME or point it to Java 17", "spark")
        return Check("Java", False, "none on PATH", remedy, "spark")
    version = _java_version(path)
    if version is None:
        return Check("Java", False, f"{path} does not tell its version", remedy, "spark")
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
    """Delta's jars, with which Spark itself reads the tables, or writes them where a table says so."""
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


def disk() -> Check:
    """Room for tables in the current directory."""
    here = Path.cwd()
    free = shutil.disk_usage(here).free
    found = f"{free / GIB:.1f} GiB free in {here}"
    if not os.access(here, os.W_OK):
        return Check("disk", False, f"{here} cannot be written to", "go to a directory of yours, or use --data-dir")
    return _checked("disk", free >= LEAST_DISK, found, "make room, or use --data-dir on another disk")


def engine(name: str) -> Check:
    """Whether a small topology runs on an engine."""
    from txstorm.cli.commands.probe import try_engine

    needed = "spark" if name == "spark" else "runs"
    try:
        with tempfile.TemporaryDirectory(prefix="txstorm-doctor-") as directory:
            try_engine(name, Path(directory))
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what the doctor is asked for
        found = f"{type(error).__name__}: {error}"
        return Check(f"engine {name}", False, found, "mend what is said here and above", needed)
    return Check(f"engine {name}", True, "a small topology ran", needed_for=needed)


def all_checks(started: Callable[[str], None]) -> Iterator[Check]:
    """All checks, one after the other; `started` is told of those that take a while.

    Spark is not tried where it cannot work.
    """
    yield python()
    spark_missing = []
    for one in (java, *_package_checks()):
        check = one()
        if check.needed_for == "spark" and not check.ok:
            spark_missing.append(check.name)
        yield check
    yield delta_jars()
    yield disk()
    started("engine local: running a small topology")
    yield engine("local")
    if spark_missing:
        yield Check("engine spark", False, f"not tried: needs {', '.join(spark_missing)}", "see above", "spark")
        return
    started("engine spark: running a small topology")
    yield engine("spark")


def _package_checks() -> list[Callable[[], Check]]:
    return [lambda one=one: package(one) for one in PACKAGES]  # type: ignore[misc]
