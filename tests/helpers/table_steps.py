"""Steps of tests of tables: decide a group, interrupt a step, fill the disk, run upkeep, and read the words back."""

import os
import resource
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from crashes import crashing
from deltalake import DeltaTable
from store_cases import add, intent_of, record

from txstorm.clients.delta.log import LOG
from txstorm.results.read import read_state
from txstorm.state.commit_group import CommitGroup
from txstorm.state.store import StateStore
from txstorm.storage.tables.intent import Intent

Words = Mapping[str, int | None]
interrupted = crashing


def decided(store: StateStore, first: int, *plan: Words, epoch: int = 1) -> tuple[CommitGroup, Intent]:
    """Stage a group of txids from `first` on that count words; return the group and its intent, not yet published."""
    group = store.group(first)
    for txid, counts in enumerate(plan, first):
        add(group, txid, counts)
    return group, intent_of(group, [record(first + i) for i in range(len(plan))], epoch)


@contextmanager
def full_disk(size: int = 100) -> Iterator[None]:
    """Let no file grow beyond `size` bytes, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def synced_paths(patch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Yield the paths of the files and directories that are synced within the context, in order."""
    paths, sync = [], os.fsync
    with patch.context() as patched:
        patched.setattr(os, "fsync", lambda file: (paths.append(os.readlink(f"/proc/self/fd/{file}")), sync(file)))
        yield paths


@contextmanager
def unlisted(directory: Path) -> Iterator[None]:
    """Fail if a log below a directory is listed within the context, even by delta-rs; found by its access time."""
    logs = [path for path in directory.rglob(LOG) if path.is_dir()]
    os.utime(logs[0], ns=(1, time.time_ns()))
    os.listdir(logs[0])
    if logs[0].stat().st_atime_ns == 1:
        pytest.skip("this file system does not note when a directory was listed")
    for log in logs:
        os.utime(log, ns=(1, time.time_ns()))
    yield
    assert [log for log in logs if log.stat().st_atime_ns != 1] == []


def upkeep_done(store: StateStore, uri: str, now: float = 1) -> bool:
    """Run the upkeep of one table that is due; return whether it took effect."""
    work = store.upkeep.begin(uri, now)
    for _ in work.steps():
        pass
    return store.upkeep.finish(work, now)


def counted(*plan: Words, before: Mapping[str, int] | None = None) -> dict[str, int]:
    """Return the words after the txids of `plan`, from those `before` on."""
    words = dict(before or {})
    for counts in plan:
        for word, n in counts.items():
            if n is None:
                words.pop(word, None)
            else:
                words[word] = words.get(word, 0) + n
    return words


def words_read(data_dir: Path, txid: int | None = None, name: str = "counts") -> dict[str, int]:
    """Return the words of a state as of a txid, by default the last one."""
    return {row["word"]: row["n"] for row in read_state(data_dir, name, txid).to_pylist()}


def plain_words(data_dir: Path, version: int | None = None, name: str = "counts") -> dict[str, int]:
    """Return the words of a state as a plain Delta reader sees them in a version, by default the newest."""
    table = DeltaTable(str(data_dir / "state" / name), version=version).to_pyarrow_table()
    return dict(zip(table.column(0).to_pylist(), table["n"].to_pylist(), strict=True))


def history_row(txid: int, timeline: int = 0, **changes: Any) -> dict[str, Any]:
    """Return the row of a txid in the history table."""
    return {
        "timeline": timeline,
        "txid": txid,
        "attempt": txid * 10,
        "stamp": 1_000_000 * txid,
        "first": txid,
        "last": txid,
        "digest": f"d{txid}",
        "extents": {"p": [txid]},
        "tuples": 5,
        "versions": {"changes/counts": txid},
        **changes,
    }
