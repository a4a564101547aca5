"""Trials of mutants: each in a fork of a process that has the package and the tests loaded, or in a changed copy."""

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from scripts._mutants import worlds
from scripts._mutants.mutation import ROOT, Functions, Mutant, mutated, plant, sources

KILLED, SURVIVES, NOT_TRIED, BROKEN = "killed", "SURVIVES", "not tried", "broken"
UNREACHED = "was found, but the changed code was not executed: "
OTHER_PROCESSES = ("subprocess.Popen", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn")
CPU_SECONDS = 900
"""Limit of one trial; a mutant that loops without end has survived until then."""

Killer = Mapping[str, Any]
"""JSON of what killed a mutant.

``{"schedule": ...}`` or ``{"test": ...}``; the latter with ``"processes": true`` if the test starts processes, and with
``"copy": true`` if it kills only in a changed copy of the package; ``"seconds"`` if the trial took long.
"""


class Outcome(NamedTuple):
    """Result of a trial: its verdict, the violation or failure, and what killed the mutant."""

    verdict: str
    what: str = ""
    killer: Killer | None = None


class Trials:
    """Tries mutants.

    Args:
        items: the collected tests, by id.
        killers: what killed each mutant the last time.
        schedules, seed: simulated worlds in which a mutant without a test is looked for.
    """

    def __init__(
        self, items: Mapping[str, pytest.Item], killers: Mapping[str, Killer], schedules: int, seed: int
    ) -> None:
        self._items, self._killers, self._schedules, self._seed = items, killers, schedules, seed
        self._functions = Functions()
        sources(ROOT / "txstorm")

    def tried(self, mutant: Mutant, copies: bool = False) -> Outcome:
        """Try the recorded killer, then a search, then both in a changed copy; with `copies` only the last."""
        killer = self._killers.get(mutant.name)
        outcome = Outcome(SURVIVES)
        if not copies and not (killer and killer.get("copy")):
            if killer:
                outcome = in_fork(partial(self._played, mutant, killer))
            if outcome.verdict == SURVIVES:
                outcome = in_fork(partial(self._searched, mutant, worlds.searched))
        if outcome.verdict == SURVIVES:
            again = self._in_copy(mutant, killer)
            outcome = again if again.verdict != SURVIVES or again.what else outcome
        return outcome

    def recorded(self, mutant: Mutant) -> Outcome:
        """Return a killer to record: the recorded one if it still kills, or one that is looked for."""
        killer = self._killers.get(mutant.name)
        outcome = in_fork(partial(self._played, mutant, killer)) if killer and not killer.get("copy") else None
        if outcome is None or outcome.verdict == SURVIVES:
            outcome = self._smallest(mutant)
        if outcome.verdict == SURVIVES:
            outcome = self._in_copy(mutant, None)
        if outcome.killer and not outcome.killer.get("copy"):
            sound = in_fork(partial(self._played, None, outcome.killer))
            if sound.verdict != SURVIVES:
                return Outcome(BROKEN, f"{outcome.killer} also fails without the mutant: {sound.what}")
        return outcome

    def _smallest(self, mutant: Mutant) -> Outcome:
        outcome = in_fork(partial(self._searched, mutant, worlds.shrunken))
        if outcome.killer is None:
            return outcome
        alone = in_fork(partial(self._played, mutant, outcome.killer))
        if alone.verdict != SURVIVES:
            return alone
        return in_fork(partial(self._searched, mutant, worlds.searched))  # shrinking relied on earlier worlds

    def _played(self, mutant: Mutant | None, killer: Killer) -> Outcome:
        """Play the recorded killer in this process, on changed code if a mutant is given."""
        reached = None if mutant is None else plant(mutated(mutant, ROOT / "txstorm"), self._functions)
        if mutant is not None and reached is None:
            return Outcome(SURVIVES)
        if "test" not in killer:
            return _judged(worlds.played(killer["schedule"]), killer, reached)
        item = self._items.get(killer["test"])
        return Outcome(SURVIVES) if item is None else _tested([item], reached)

    def _searched(self, mutant: Mutant, search: Callable[[int, int], tuple[dict[str, Any], str] | None]) -> Outcome:
        """Look in this process for a killer: in simulated worlds, or among the tests that the mutant names."""
        reached = plant(mutated(mutant, ROOT / "txstorm"), self._functions)
        if reached is None:
            return Outcome(SURVIVES)
        if mutant.test:
            named = mutant.test
            items = [item for id_, item in self._items.items() if f"{id_}[".startswith((f"{named}::", f"{named}["))]
            return _tested(items, reached)
        found = search(self._schedules, self._seed)
        return _judged(found[1], {"schedule": found[0]}, reached) if found else Outcome(SURVIVES)

    def _in_copy(self, mutant: Mutant, killer: Killer | None) -> Outcome:
        """Try a mutant in a changed copy of the package, in a new interpreter."""
        with tempfile.TemporaryDirectory(prefix="txstorm-mutant-") as place:
            shutil.copytree(ROOT / "txstorm", Path(place) / "txstorm")  # with compiled files: most stay valid
            change, trace = mutated(mutant, ROOT / "txstorm"), Path(place) / "reached"
            module = Path(place) / change.module.relative_to(ROOT)
            module.write_text(change.text(trace), encoding="utf-8")
            if mutant.test:
                recorded = (killer or {}).get("test")
                outcome = _test_in(place, recorded) if recorded in self._items else Outcome(SURVIVES)
                if outcome.verdict == SURVIVES and recorded != mutant.test:
                    outcome = _test_in(place, mutant.test)
            else:
                arguments = json.dumps((killer or {}).get("schedule")), str(self._schedules), str(self._seed)
                made = _python(place, "scripts._mutants.worlds", *arguments)
                what = made.stdout.strip()
                outcome = Outcome(BROKEN, made.stderr) if made.returncode else _judged(what, {"copy": True}, [True])
            if outcome.verdict == KILLED and not trace.exists():
                return Outcome(SURVIVES, UNREACHED + outcome.what)
            return outcome


def _judged(what: str, killer: Killer, reached: list[bool] | None) -> Outcome:
    """Return the outcome of a trial that found `what`, if anything; `reached` is None for code without a mutant."""
    if not what:
        return Outcome(SURVIVES)
    if reached == []:
        return Outcome(SURVIVES, UNREACHED + what)
    return Outcome(KILLED, what, killer)


# --- tests ------------------------------------------------------------------------------------------------------------


class _Reports:
    """Pytest plugin that keeps the reports of tests."""

    def __init__(self) -> None:
        self.failed: list[str] = []
        self.skipped: list[str] = []
        self.passed = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            text = report.longreprtext.strip().splitlines()
            self.failed.append(f"{report.nodeid} - {text[-1] if text else ''}")
        elif report.skipped and not hasattr(report, "wasxfail"):
            where = report.longrepr
            self.skipped.append(str(where[2]) if isinstance(where, tuple) else str(where))
        elif report.when == "call":
            self.passed += 1


def _tested(items: Sequence[pytest.Item], reached: list[bool] | None) -> Outcome:
    """Run tests in this process until one fails; one that starts no process is preferred."""
    processes: list[str] = []
    sys.addaudithook(lambda event, arguments: processes.append(event) if event in OTHER_PROCESSES else None)
    best, reports = Outcome(SURVIVES), _Reports()
    for item in items:
        item.config.pluginmanager.register(reports)
        reports.failed.clear()
        processes.clear()
        if reached:
            reached.clear()
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        item.config.pluginmanager.unregister(reports)
        if reports.failed:
            killer = {"test": item.nodeid, **({"processes": True} if processes else {})}
            outcome = _judged(reports.failed[0], killer, reached)
            if outcome.verdict == KILLED and not processes:
                return outcome
            best = outcome if best.verdict == SURVIVES else best
    if best.verdict == SURVIVES and reports.skipped and not reports.passed:
        return Outcome(NOT_TRIED, reports.skipped[0])
    return best


def _test_in(place: str, test: str) -> Outcome:
    """Run a test on the copy of the package at `place`."""
    options = ["-qx", "-rfEs", "-p", "no:cacheprovider", "--no-header", "--tb=no", "--hypothesis-seed=0"]
    made = _python(place, "pytest", *options, test)
    lines = made.stdout.splitlines()
    if made.returncode not in (0, 1):
        return Outcome(BROKEN, f"{test} did not run: {made.stdout}{made.stderr}")
    if made.returncode:
        what = next(line for line in lines if line.startswith(("FAILED", "ERROR"))).partition(" ")[2]
        return Outcome(KILLED, what, {"test": what.partition(" - ")[0], "copy": True})
    skipped = [line for line in lines if line.startswith("SKIPPED")]
    return Outcome(NOT_TRIED, skipped[0]) if skipped and " passed" not in lines[-1] else Outcome(SURVIVES)


# --- processes --------------------------------------------------------------------------------------------------------


def _python(place: str, module: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run a module as a program that imports the package from `place`; -P: not from the current directory."""
    paths = os.pathsep.join([place, str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-P", "-m", module, *arguments]
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)


def in_fork(play: Callable[[], Outcome]) -> Outcome:
    """Call `play` in a fork of this process, with a temporary directory of its own; return its outcome."""
    with tempfile.TemporaryDirectory(prefix="txstorm-mutant-") as place, tempfile.TemporaryFile("w+") as answer:
        pid = os.fork()
        if not pid:
            _forked(play, place, answer.fileno())
        _, status = os.waitpid(pid, 0)
        answer.seek(0)
        text = answer.read()
    if not text:
        return Outcome(BROKEN, f"the process ended with {os.waitstatus_to_exitcode(status)}")
    return Outcome(*json.loads(text))


def _forked(play: Callable[[], Outcome], place: str, answer: int) -> None:
    """Call `play`, write its outcome, and end this process."""
    try:
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 10))
        silence = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(silence, number)
        os.environ["TMPDIR"] = os.environ["PYTEST_DEBUG_TEMPROOT"] = tempfile.tempdir = place
        outcome = play()
    except BaseException:  # noqa: BLE001 - it must not reach the code after the fork
        outcome = Outcome(BROKEN, traceback.format_exc())
    os.write(answer, json.dumps(outcome).encode())
    os._exit(0)
