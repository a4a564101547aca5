"""Fixtures for CLI tests: a directory with a user's module, and functions that run commands in this process."""

import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import Commands

WORDS = """
from txstorm import BatchBolt, Committer, KeyedState, SinkTable, TransactionalTopologyBuilder
from txstorm.spouts import MemoryTransactionalSpout


class Keep(BatchBolt, Committer):
    state = KeyedState("counts", key={"word": str}, value={"n": int})
    log = SinkTable("log", {"word": str})

    def prepare(self, context, collector, attempt):
        self.counts, self.rows, self.batch = context.state("counts"), context.sink("log"), {}

    def execute(self, tuple):
        if tuple["word"] == "boom":
            raise ValueError("a word [red] that explodes")
        self.batch[tuple["word"]] = self.batch.get(tuple["word"], 0) + 1

    def finish_batch(self):
        self.counts.update_many(self.batch, lambda old, n: (old or 0) + n)
        for word in self.batch:
            self.rows.append(word)


def builder(words, name="words", take=2):
    made = TransactionalTopologyBuilder(name, "source", MemoryTransactionalSpout([list(words)], "word", take=take))
    made.set_committer_bolt("keep", Keep(), 2).fields_grouping("source", ["word"])
    return made


def made(words, name="words", take=2):
    return builder(words, name, take).build_topology()


topology = made(["cat", "dog", "cat", "<b>", "dog", "cat"])
"""


@pytest.fixture
def words(in_tmp: Path) -> Iterator[Path]:
    """Write the user's module ``words.py`` into a temporary current directory; undo its import after the test."""
    path, modules, log = list(sys.path), set(sys.modules), logging.getLogger("txstorm")
    handlers, level = list(log.handlers), log.level
    (in_tmp / "words.py").write_text(WORDS, encoding="utf-8")
    yield in_tmp
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if str(in_tmp) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]
    log.handlers[:] = handlers
    log.setLevel(level)


@pytest.fixture
def txstorm(words: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Commands:
    """Return an object that runs commands of txstorm in this process, in the directory of the user's module."""
    return Commands(capsys, monkeypatch)


@pytest.fixture
def txstorm_json(txstorm: Commands) -> Callable[..., tuple[int, dict[str, Any]]]:
    """Return a function that runs a command with ``--json`` and returns (exit code, object of the last output line)."""

    def command(*arguments: str) -> tuple[int, dict[str, Any]]:
        ended = txstorm(*arguments, "--json")
        return ended.code, ended.json

    return command
