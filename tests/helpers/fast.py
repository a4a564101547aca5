"""Selection of tests for `scripts/test --fast`, pytest's option ``--fast``: those of single rooms, in one process.

This module is the only place that says what is left out. `scripts/mutants --killers` counts the mutants that are killed
by tests of the rest.
"""

import sys
from collections.abc import Generator
from pathlib import Path

import hypothesis
import pytest
from spread import group

TESTS = Path(__file__).resolve().parents[1]
DIRECTORIES = ("stateful", "unit", "windows")
"""What is collected, unless files or directories are named on the command line."""
COSTLY = (
    "unit/cli",
    "unit/clients/delta",
    "unit/hailstorm/test_companion.py",
    "unit/hailstorm/test_hailstorm_topologies.py",
    "unit/ledger/delta",
    "unit/simulation",  # the stage before pytest runs simulated worlds
    "unit/storage",
    "unit/test_allocator.py",
    "unit/test_mutants.py",
    "unit/test_notebook.py",
    "unit/testing/test_plugin.py",
    "windows/test_forms_on_engines.py",
    "windows/test_window_starts.py",
    "windows/test_windows_on_tables.py",
)
"""Files and directories in these that start interpreters or write and read many tables: half of the processor time."""
MARKS = {"spark", "integration", "notebook", "slow", "long"}
STARTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"}
"""Audit events of a new process."""


def collected(path: Path) -> bool:
    """Return whether a file or directory is collected with ``--fast`` if none is named."""
    if TESTS not in path.parents:
        return False
    inner = path.relative_to(TESTS)
    return inner.parts[0] in DIRECTORIES and not any(inner.is_relative_to(costly) for costly in COSTLY)


class Fast:
    """Plugin of all pytest processes: leaves out costly tests with ``--fast``, and lets none of the rest start a process."""

    def __init__(self, config: pytest.Config) -> None:
        self._option = config.option
        self._running = False
        if not config.option.fast:
            return
        if not hasattr(config, "workerinput") and config.args_source is config.ArgsSource.ARGS:
            config.option.fast = "named"  # workers get the options, too
        hypothesis.settings.load_profile("fast")
        sys.addaudithook(self._refuse)

    def selects(self, item: pytest.Item) -> bool:
        return collected(item.path) and self._cheap(item)

    def _cheap(self, item: pytest.Item) -> bool:
        return not group(item) and MARKS.isdisjoint(mark.name for mark in item.iter_markers())

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        whole = self._option.fast == "all" and collection_path != TESTS
        return True if whole and not collected(collection_path) else None

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Deselect marked tests, and tests of Spark and servers."""
        if self._option.fast and (costly := [item for item in items if not self._cheap(item)]):
            items[:] = [item for item in items if self._cheap(item)]
            config.hook.pytest_deselected(items=costly)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self) -> Generator[None, object, object]:
        """Refuse processes while a test runs; between tests pytest may start some."""
        self._running = True
        try:
            return (yield)
        finally:
            self._running = False

    def _refuse(self, event: str, arguments: object) -> None:
        if self._running and event in STARTS:
            raise AssertionError(f"{event}: scripts/test --fast starts no process; mark this test `integration`")
