"""Counts the Java processes that a test run starts, from /proc: a pytest plugin of the process that distributes tests.

A process belongs to the run if it has its mark in the environment, which children inherit, or descends from it. Spark's
launcher and tools such as keytool end within a second and may be missed; they do not count as JVMs of Spark or servers.
"""

import os
import threading
import time
import uuid
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

PROC = Path("/proc")
EVERY = 0.5  # seconds between two looks
YOUNG = 5.0  # seconds within which a process may still turn from a shell into Java
KINDS = {
    "org.apache.spark.launcher.Main": "other",  # it names the class that Spark's scripts start next
    "org.apache.spark.deploy.SparkSubmit": "spark",
    "org.apache.spark.deploy.master.Master": "spark",
    "org.apache.spark.deploy.worker.Worker": "spark",
    "CoarseGrainedExecutorBackend": "spark",
    "kafka.Kafka": "server",
    "QuorumPeerMain": "server",
}
AT_MOST = {"spark": 12, "server": 8}
"""Budget of JVMs for one run of all tests."""
MARK = "TXSTORM_TEST_RUN"


@dataclass(frozen=True, slots=True)
class Jvm:
    """A Java process: its kind, and the test that was running when it was started (empty if unknown)."""

    kind: str
    test: str


def kind_of(words: list[str]) -> str | None:
    """Return the kind of a process with this command line; None if it is not Java."""
    if not words or Path(words[0]).name != "java":
        return None
    return next((kind for name, kind in KINDS.items() if any(name in word for word in words)), "other")


class JavaProcesses:
    """Looks for new Java processes of this test run, in a thread, until the end of the session."""

    def __init__(self) -> None:
        self.found: dict[int, Jvm] = {}
        self._mark = uuid.uuid4().hex
        self._first_seen: dict[int, float] = {}
        self._last: dict[int, bytes] = {}
        self._ours: set[int] = {os.getpid()}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="java-processes", daemon=True)
        os.environ[MARK] = self._mark

    def pytest_sessionstart(self) -> None:
        self._thread.start()

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Look once more; let a complete run fail that has started more JVMs than the budget."""
        self._ended.set()
        self._thread.join()
        os.environ.pop(MARK, None)
        if session.config.getoption("jvm_budget") and session.exitstatus == 0 and self.exceeded():
            session.exitstatus = 1

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print the counts, and the tests that started each kind."""
        if not self.found:
            return
        terminalreporter.section("Java processes")
        for line in self.lines():
            terminalreporter.line(line)

    def exceeded(self) -> list[str]:
        """Return the kinds of which there were more than the budget."""
        counts = self.counts()
        return [kind for kind, most in AT_MOST.items() if counts[kind] > most]

    def counts(self) -> Counter[str]:
        return Counter(one.kind for one in self.found.values())

    def lines(self) -> list[str]:
        """Return the summary, one line for each kind, and one for each test below it."""
        counts, shown = self.counts(), []
        for kind in sorted({*AT_MOST, *counts}):
            budget = f" (at most {AT_MOST[kind]} for all tests)" if kind in AT_MOST else ""
            shown.append(f"{kind} JVMs: {counts[kind]}{budget}")
            if kind in AT_MOST:
                tests = Counter(one.test or "unknown" for one in self.found.values() if one.kind == kind)
                shown += [f"    {count}  {test}" for test, count in tests.items()]
        return shown

    def _watch(self) -> None:
        while not self._ended.wait(EVERY):
            self.look()
        self.look()

    def look(self) -> None:
        """Examine the processes that are new since the last look, or young."""
        now = time.monotonic()
        living = {int(name) for name in os.listdir(PROC) if name.isdecimal()}
        self._first_seen = {pid: self._first_seen.get(pid, now) for pid in living}
        self._ours &= {os.getpid(), *living}
        for pid in sorted(living):
            if now - self._first_seen[pid] < YOUNG and pid not in self.found:
                try:
                    self._examine(pid)
                except OSError:  # it has ended, or belongs to another user
                    continue

    def _examine(self, pid: int) -> None:
        stat = (PROC / str(pid) / "stat").read_text(errors="replace")
        if int(stat[stat.rindex(")") + 2 :].split()[1]) in self._ours:
            self._ours.add(pid)
        command = (PROC / str(pid) / "cmdline").read_bytes()
        before, self._last[pid] = self._last.get(pid), command
        kind = kind_of(command.decode(errors="replace").split("\0"))
        # A process that Java starts has Java's command line for a moment: it counts if it is Java twice.
        if kind is None or before != command:
            return
        pairs = (PROC / str(pid) / "environ").read_bytes().decode(errors="replace").split("\0")
        known = dict(pair.partition("=")[::2] for pair in pairs)
        if pid in self._ours or known.get(MARK) == self._mark:
            self.found[pid] = Jvm(kind, known.get("PYTEST_CURRENT_TEST", "").partition(" ")[0])
