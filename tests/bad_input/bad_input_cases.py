"""Helpers of the bad-input tests: a small topology, runs of it, expected errors, and directory listings."""

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from txstorm import BatchBolt, Committer, KeyedState, SinkTable, Topology, TransactionalTopologyBuilder, run
from txstorm.errors import TxstormError
from txstorm.spouts import FileSpout

WORDS = ["a", "b", "a", "c"]


class Keep(BatchBolt, Committer):
    """A committer that counts words, and writes every line to a sink."""

    state = KeyedState("counts", key={"word": str}, value={"n": int})
    sink = SinkTable("lines", {"line": str})

    def prepare(self, context, collector, attempt):
        self.counts, self.out = context.state("counts"), context.sink("lines")
        self.lines = []

    def execute(self, tuple):
        self.lines.append(tuple["line"])

    def finish_batch(self):
        for line in self.lines:
            self.counts.update(line, lambda old: (old or 0) + 1)
            self.out.append(line)


class Says(NamedTuple):
    """An expected error: its exact class, the name of the faulty object, what was found or expected, and the remedy."""

    kind: type[TxstormError]
    thing: str
    found: str
    cure: str


@contextmanager
def refused(says: Says) -> Iterator[pytest.ExceptionInfo[TxstormError]]:
    with pytest.raises(TxstormError) as caught:
        yield caught
    check_says(caught.value, says)


def check_says(error: BaseException, says: Says) -> None:
    text = str(error)
    assert isinstance(error, says.kind), f"{type(error).__name__}: {text}"
    assert type(error).__name__ == says.kind.__name__, f"{type(error).__name__}: {text}"
    for part in says[1:]:
        assert part in text, text
    assert "Traceback" not in text


def listing(directory: Path) -> dict[str, str]:
    """Return everything below `directory`: relative path → kind of entry, or the digest of a file.

    SQLite's files beside a ledger that was read are omitted as long as its write-ahead log is empty.
    """
    found = {}
    for path in sorted(directory.rglob("*")):
        if path.name == "ledger.db-shm" or (path.name == "ledger.db-wal" and not path.stat().st_size):
            continue
        kind = hashlib.blake2b(path.read_bytes()).hexdigest() if path.is_file() else "directory"
        found[str(path.relative_to(directory))] = kind
    return found


@contextmanager
def unchanged(directory: Path) -> Iterator[None]:
    """Assert that the body creates, changes or removes nothing below `directory`, nor `directory` itself."""
    there, before = directory.exists(), listing(directory)
    yield
    assert listing(directory) == before
    assert directory.exists() == there


def builder(source: Path, bolt: Any = None, id: str = "words", rows: int = 1) -> TransactionalTopologyBuilder:
    made = TransactionalTopologyBuilder(id, "lines", FileSpout(source, max_batch_rows=rows))
    made.set_committer_bolt("keep", bolt or Keep()).global_grouping("lines")
    return made


def topology(source: Path, bolt: Any = None, **changes: Any) -> Topology:
    return builder(source, bolt, **changes).build_topology()


def write_words(path: Path, words: Sequence[str] = WORDS) -> Path:
    path.write_text("".join(f"{word}\n" for word in words))
    return path


def go(made: Topology, data_dir: Path | str, engine: Any = "local", **options: Any) -> int:
    """Run to the end of the input; return the last committed txid."""
    handle = run(made, engine=engine, data_dir=data_dir, **{"available_now": True, **options})
    assert handle.awaitTermination(120), handle.status
    return handle.committed


def run_words(tmp_path: Path, name: str = "data", **changes: Any) -> Path:
    """Count `WORDS` with one txid and one commit per word; return the data directory."""
    counted = topology(write_words(tmp_path / "words.txt"), **changes)
    assert go(counted, tmp_path / name, settings={"max_group_txids": 1}) == len(WORDS)
    return tmp_path / name


def rewrite(path: Path, change: Callable[[bytes], bytes]) -> None:
    before = path.read_bytes()
    after = change(before)
    assert after != before
    path.write_bytes(after)


def logs(data_dir: Path) -> list[Path]:
    return sorted(data_dir.glob("**/_delta_log/*.json"))


def environment(**changes: str) -> Mapping[str, str]:
    """Return the environment of child processes, with the module paths of the tests."""
    root = str(Path(__file__).resolve().parents[2])
    here = Path(__file__).resolve().parent
    tests = [str(here), str(here.parent), str(here.parent / "helpers")]
    path = os.pathsep.join([root, *tests, os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, **changes}
