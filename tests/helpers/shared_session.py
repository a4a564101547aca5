"""The Spark session that all tests of a process share: what a test or a program must leave as it was, and programs in it.

Starting a session takes ten processor seconds. A program that runs in this process instead of one of its own meets the
existing session, as in a notebook: `SparkSession.builder.getOrCreate` returns it, and so does txstorm.
"""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from programs import ROOT, run_as_main

BY_DELTA = {
    "spark.databricks.delta.lastCommitVersionInSession",
    "spark.sql.parquet.fieldId.read.enabled",
    "spark.sql.parquet.fieldId.write.enabled",
}
"""Settings of the session that Delta makes itself when it reads and writes tables."""
INSTALLED = tuple({sys.prefix, sys.base_prefix, str(ROOT)})


def current() -> Any:
    """Return the session of this process; None if there is none."""
    if "pyspark" not in sys.modules:
        return None
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if SparkContext._active_spark_context is None:
        return None
    return SparkSession.builder.getOrCreate()


@dataclass(frozen=True, slots=True)
class Surroundings:
    """State of the process that later tests share: by name, a value that can be compared and restored."""

    process: Mapping[str, Any]
    spark: Mapping[str, Any] | None

    @classmethod
    def now(cls) -> Surroundings:
        """Return those of this moment."""
        process = {
            "sys.path": list(sys.path),
            "sys.argv": list(sys.argv),
            "current directory": os.getcwd(),
            "environment": {name: text for name, text in os.environ.items() if name != "PYTEST_CURRENT_TEST"},
            "modules": _own_modules(),
        }
        session = current()
        return cls(process, None if session is None else _of_session(session))

    def changes(self) -> list[str]:
        """Return what has changed since, in words; Spark's part only if there was a session, and there is one."""
        now, found = Surroundings.now(), []
        pairs = [(self.process, now.process)]
        if self.spark is not None and now.spark is not None:
            pairs.append((self.spark, now.spark))
        elif self.spark is not None:
            found.append("the Spark session has been stopped")
        else:  # a new session changes the environment
            pairs[0] = tuple({**one, "environment": None, "sys.path": None} for one in pairs[0])  # type: ignore[assignment]
        for before, after in pairs:
            found += [
                f"{name}: {_difference(before[name], after[name])}" for name in before if before[name] != after[name]
            ]
        return found

    def restore(self) -> None:
        """Set everything back as it was, so that only the test that has changed it fails."""
        sys.path[:] = self.process["sys.path"]
        sys.argv[:] = self.process["sys.argv"]
        os.chdir(self.process["current directory"])
        for name in set(os.environ) - set(self.process["environment"]) - {"PYTEST_CURRENT_TEST"}:
            del os.environ[name]
        os.environ.update(self.process["environment"])
        for name in _own_modules() - self.process["modules"]:
            del sys.modules[name]
        session = current()
        if session is not None and self.spark is not None:
            _restore_session(session, self.spark)


def _difference(before: Any, after: Any) -> str:
    if isinstance(before, dict) and isinstance(after, dict):
        names = sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
        return ", ".join(f"{name} was {before.get(name)!r} and is {after.get(name)!r}" for name in names)
    return f"was {before!r}, is {after!r}"


def _own_modules() -> set[str]:
    """Return the names of imported modules that are neither installed nor part of the project."""
    files = {name: getattr(module, "__file__", None) for name, module in list(sys.modules.items())}
    return {name for name, file in files.items() if file and not str(file).startswith(INSTALLED)}


def _of_session(session: Any) -> dict[str, Any]:
    catalog = session._jsparkSession.sessionState().catalog()
    # As one text: every call of the JVM costs, and this is asked for twice per test.
    pairs = session._jsparkSession.conf().getAll().mkString("\x1f").split("\x1f")
    configuration = {name: text for name, text in (one.split(" -> ", 1) for one in pairs) if name not in BY_DELTA}
    return {
        # A program that asks for another master than that of the existing session changes no more than this entry.
        "Spark configuration": {**configuration, "spark.master": session.sparkContext.master},
        "temporary views": sorted(filter(None, catalog.getTempViewNames().mkString("\n").split("\n"))),
        "streaming queries": [str(query.id) for query in session.streams.active],
        "running jobs": list(session.sparkContext.statusTracker().getActiveJobsIds()),
    }


def _restore_session(session: Any, before: Mapping[str, Any]) -> None:
    now = _of_session(session)
    for name in set(now["Spark configuration"]) - set(before["Spark configuration"]):
        session.conf.unset(name)
    for name, text in before["Spark configuration"].items():
        if session.conf.get(name, None) != text:
            session.conf.set(name, text)
    for name in set(now["temporary views"]) - set(before["temporary views"]):
        session.catalog.dropTempView(name)
    for query in session.streams.active:
        if str(query.id) not in before["streaming queries"]:
            query.stop()
    session.sparkContext.cancelAllJobs()


def run_here(*arguments: Any, cwd: Path, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run ``python ARGUMENTS`` in this process, where it meets the Spark session; return what it printed.

    Fails if the program has left something behind that an own process would have taken with it.
    """
    argv = [str(one) for one in arguments]
    out, err = io.StringIO(), io.StringIO()
    code: Any = 0
    before, main = Surroundings.now(), sys.modules["__main__"]
    environment = dict(os.environ)
    os.chdir(cwd)
    _resolve_paths_in(cwd)
    os.environ.update(env or {})
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                run_as_main(argv)
            except SystemExit as ended:
                code = ended.code or 0
            except Exception:  # noqa: BLE001 - the interpreter reports it so, too
                traceback.print_exc()
                code = 1
            if isinstance(code, str):
                print(code, file=sys.stderr)
                code = 1
        _undo(before, environment, cwd, env or {})
        changes = before.changes()
        assert not changes, f"{argv} has not left everything as it was: {changes}"
    finally:
        sys.modules["__main__"] = main
        before.restore()
        _resolve_paths_in(Path.cwd())
    return subprocess.CompletedProcess(argv, code, out.getvalue(), err.getvalue())


def _resolve_paths_in(directory: Path) -> None:
    """Let Spark resolve relative paths in `directory`, as if its JVM had been started there."""
    session = current()
    if session is not None:
        hadoop = session._jvm.org.apache.hadoop.fs
        files = hadoop.FileSystem.get(session.sparkContext._jsc.hadoopConfiguration())
        files.setWorkingDirectory(hadoop.Path(str(directory)))


def _undo(before: Surroundings, environment: Mapping[str, str], cwd: Path, env: Mapping[str, str]) -> None:
    """Undo what was set for the program, as far as the program has left it so."""
    sys.argv = list(before.process["sys.argv"])
    if sys.path[1:] == before.process["sys.path"]:
        del sys.path[0]
    if Path.cwd() == cwd.resolve():
        os.chdir(before.process["current directory"])
    for name, text in env.items():
        if os.environ.get(name) == text:
            del os.environ[name]
            os.environ.update({name: environment[name]} if name in environment else {})
