"""W9: the driver's memory over many transactions, and the bytes written. Each measurement is a separate side."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.machine import percentile, rss_mib
from benchmarks.suite.exact import check
from benchmarks.suite.job import Job
from benchmarks.suite.topologies import leave_counts, topology_of
from txstorm.monitor.progress import TransactionProgress
from txstorm.runtime.run import run

SAMPLES = 100


def memory(options: Mapping[str, Any]) -> dict[str, Any]:
    """Measure the driver's resident MiB a hundred times during a run, and the p99 of commits in each tenth."""
    job = Job("words", 10, int(options["txids"]), loaded=False, directory=options["directory"])
    samples: list[float] = []
    commits: list[float] = []

    def sample(progress: TransactionProgress) -> None:
        commits.append(sum(progress.commit_ms.values()))
        if progress.txid % max(1, job.last // SAMPLES) == 0:
            samples.append(rss_mib())

    _run(job, options["engine"], sample)
    tenth = max(1, len(commits) // 10)
    p99 = [percentile(commits[at : at + tenth], 0.99) for at in range(0, len(commits), tenth)]
    return {"samples": samples, "commit p99 ms": p99, "files": _count_files(Path(job.directory))}


def written(options: Mapping[str, Any]) -> dict[str, Any]:
    """Measure the bytes that a word count writes, by kind, and the Arrow bytes of the changed rows."""
    job = Job("words", 1_000, int(options["txids"]), loaded=False, columns=True, directory=options["directory"])
    files = Files(Path(job.directory) / "data")
    before = _written_by_process()

    def look(progress: TransactionProgress) -> None:
        if progress.txid == job.last or progress.txid % 8 == 0:
            files.look()

    _run(job, options["engine"], look, compact=True)
    files.look()
    changed = sum(_arrow_bytes(job, txid) for txid in range(1, job.last + 1))
    return {"bytes": dict(files.bytes), "changed": changed, "process": _written_by_process() - before}


class Files:
    """Total size of all files ever seen in a directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.bytes: Counter[str] = Counter()
        self._seen: dict[tuple[str, int], int] = {}

    def look(self) -> None:
        """Scan the directory: add the sizes of new files and the growth of known ones."""
        for directory, _, names in os.walk(self.root):
            for name in names:
                self._note(os.path.join(directory, name))

    def _note(self, path: str) -> None:
        try:
            found = os.stat(path)
        except FileNotFoundError:
            return
        key = (path, found.st_ino)
        grown = found.st_size - self._seen.get(key, 0)
        if grown > 0:
            self._seen[key] = found.st_size
            self.bytes[kind_of(path)] += grown


def kind_of(path: str) -> str:
    """Classify a file of a data directory: ``data``, ``log``, ``checkpoints``, ``ledger`` or ``index``."""
    if "_delta_log" in path:
        return "log" if path.endswith(".json") else "checkpoints"
    if path.endswith((".parquet", ".arrow")):
        return "data"
    return "ledger" if "ledger" in Path(path).name else "index"


def _arrow_bytes(job: Job, txid: int) -> int:
    found = job.words(txid).unique()
    return int(found.nbytes) + 8 * len(found)


def _written_by_process() -> int:
    try:
        lines = Path("/proc/self/io").read_text().splitlines()
    except OSError:
        return 0
    return next(int(line.split()[1]) for line in lines if line.startswith("wchar"))


def _count_files(directory: Path) -> int:
    return sum(len(names) for _, _, names in os.walk(directory))


def _run(job: Job, engine: str, listener: Callable[[TransactionProgress], None], *, compact: bool = False) -> None:
    directory = Path(job.directory) / "data"
    handle = run(
        topology_of(job),
        engine=engine,
        data_dir=directory,
        until_txid=job.last,
        settings={"compact_on_stop": compact},
        listeners=[listener],
    )
    handle.awaitTermination()
    leave_counts(job, directory)
    check("txstorm", job)
