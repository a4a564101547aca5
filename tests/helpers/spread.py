"""Spreads tests over pytest's workers: a file stays in one worker, and so does all that needs the same costly process.

Tests marked `spark` run in one worker, which has the only Spark session; tests of servers run in another one, which has
the only broker, ZooKeeper, Redis and PostgreSQL, so a test may stop them. Both begin at once, and get files of other
tests when they have finished. Then come the files that took longest in the last run, so that no worker is left with a
long one at the end.
"""

import fcntl
import json
import os
import re
import tempfile
from collections import Counter
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

GROUPS = ("spark", "servers")
SERVERS = {"kafka_broker", "zookeeper_server", "redis_server", "postgres"}
"""Fixtures that start a server for a whole test process."""
SERVER = re.compile(r"\[.*(kafka|zookeeper|redis|postgres|topic)")
"""Parameters of tests that ask for these fixtures by name."""
MARKS = ("slow", "spark", "integration", "notebook")
LONG_ON_SPARK = re.compile(
    r"tests/conformance/.*::test_((the_end_of_input|heartbeats)_.*\[spark-(?!all)|audits_.*\[spark-plain|later_runs_.*\[spark"
    r"|item_(32|47)_.*\[spark-(watch|emit|after|keep-finish)|item_43_.*\[spark-(?!OpaqueLog-after|PartitionedLog-keep)"
    r"|random_networks_.*\[spark-1[3-6]|small_pieces_.*\[spark-.*300|whatever_fails_.*\[OpaqueLog-0-spark)"
)
"""What each run of all tests does on threads, and for one of its parameters on Spark, too."""
LONG = 3600
"""Seconds that a test marked `long` may take: a machine four times slower than one that needs ten minutes meets it."""
SECONDS = "txstorm/seconds"
"""Key of pytest's cache: the seconds that each file took in the last run."""


def group(item: pytest.Item) -> str | None:
    """Return the group of tests that have to run in the same worker; None if `item` may run beside its file only."""
    if item.get_closest_marker("spark"):
        return "spark"
    served = SERVERS.intersection(getattr(item, "fixturenames", ())) or SERVER.search(item.nodeid)
    return "servers" if served else None


def file_of(nodeid: str) -> str:
    return nodeid.partition("::")[0]


class GroupScheduling(LoadFileScheduling):
    """Gives each worker whole files, except that all tests of a group go to one worker.

    After the crash of a worker, the rest of its tests is run by the others or by the worker that replaces it. The test
    that crashed is not run again: the next worker would crash, too.
    """

    def __init__(self, config: pytest.Config, log: Any, groups: Path) -> None:
        super().__init__(config, log)
        self._file = groups
        self._groups: dict[str, str] = {}

    def schedule(self) -> None:
        """Read the groups, which the workers have stored, before the first distribution."""
        if self.collection is None:
            self._groups = json.loads(self._file.read_text(encoding="utf-8"))
        super().schedule()

    def remove_node(self, node: Any) -> str | None:
        """Return to the queue what a worker that has ended has not run; return the test that crashed it, if any."""
        units = self.assigned_work.pop(node)
        left = {scope: [test for test, done in unit.items() if not done] for scope, unit in units.items()}
        left = {scope: tests for scope, tests in left.items() if tests}
        crashed = next((tests.pop(0) for tests in left.values()), None)
        self.workqueue.update({scope: dict.fromkeys(tests, False) for scope, tests in left.items() if tests})
        for other in self.nodes:
            self._reschedule(other)
        return crashed

    def _reschedule(self, node: Any) -> None:
        """Give a worker at least two tests while there are any: it runs one when it knows the next, or that none follows.

        Otherwise the replacement of a crashed worker, which gets one unit only, would wait for a second test forever.
        """
        if node not in self.registered_collections:  # it replaces a crashed worker, and is still collecting
            return
        with suppress(OSError):  # it has crashed, too, and `remove_node` is to return what it was given
            super()._reschedule(node)
            while self.workqueue and self._pending_of(self.assigned_work[node]) < 2 and not node.shutting_down:
                self._assign_work_unit(node)
        if not self.workqueue:
            node.shutdown()  # after its tests

    def _split_scope(self, nodeid: str) -> str:
        return self._groups.get(nodeid) or super()._split_scope(nodeid)


class Spread:
    """Plugin of all pytest processes: orders the tests, and distributes them."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._worker: dict[str, Any] | None = getattr(config, "workerinput", None)
        self._seconds: Counter[str] = Counter()
        self._made = None if self._worker else tempfile.TemporaryDirectory(prefix="txstorm-spread-")
        self._groups = Path(self._worker["groups"] if self._worker else self._made.name)

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> Generator[None, object, object]:
        """Let one worker at a time import a file: the first rewrites its assertions, the others load what it stored."""
        if self._worker is None or not isinstance(collector, pytest.Module):
            return (yield)
        with (self._groups / f"{collector.nodeid.replace('/', '+')}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Order the tests: groups first, then long files, by the last run or, if it is unknown, by their marks.

        Tests that get the Spark session from a fixture are marked `spark` here, if they are not; those marked `long`
        have the limit `LONG`, also when one of them is run by its name.
        """
        for item in items:
            if LONG_ON_SPARK.match(item.nodeid):
                item.add_marker("long")
            if item.get_closest_marker("long") and not item.get_closest_marker("timeout"):
                item.add_marker(pytest.mark.timeout(LONG))
            if "spark" in getattr(item, "fixturenames", ()) and not item.get_closest_marker("spark"):
                item.add_marker("spark")
        seconds = self._worker["seconds"] if self._worker else self._known()
        long = {file_of(item.nodeid) for item in items if any(item.get_closest_marker(mark) for mark in MARKS)}

        def key(item: pytest.Item) -> tuple[int, float, bool]:
            mine, file = group(item), file_of(item.nodeid)
            return GROUPS.index(mine) if mine else len(GROUPS), -seconds.get(file, 0.0), file not in long

        items.sort(key=key)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Store the groups of the tests that are left for the process that distributes them."""
        if self._worker is not None:
            groups = {item.nodeid: mine for item in session.items if (mine := group(item))}
            partial = self._groups / f"{os.getpid()}.partial"
            partial.write_text(json.dumps(groups), encoding="utf-8")
            os.replace(partial, self._groups / "groups.json")

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tell a new worker where to store the groups, and what the last run took."""
        node.workerinput.update(groups=str(self._groups), seconds=self._known())

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> GroupScheduling | None:
        """Distribute groups with ``--dist loadfile``."""
        if config.getvalue("dist") != "loadfile":
            return None
        return GroupScheduling(config, log, self._groups / "groups.json")

    def _known(self) -> dict[str, float]:
        """Return what the files took in earlier runs; nothing without pytest's cache."""
        cache = getattr(self._config, "cache", None)
        return {} if cache is None else cache.get(SECONDS, {})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when is not None and self._worker is None:
            self._seconds[file_of(report.nodeid)] += report.duration

    def pytest_sessionfinish(self) -> None:
        """Keep what the files took for the next run."""
        if self._made is not None:
            self._made.cleanup()
            known = self._known()
            if (cache := getattr(self._config, "cache", None)) is not None:
                cache.set(SECONDS, {**known, **{file: round(s, 1) for file, s in self._seconds.items()}})
