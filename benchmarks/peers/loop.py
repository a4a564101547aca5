"""Upper bound for a comparison: a loop over deltalake alone, with counts in a dict and appends of changed rows."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from benchmarks.suite.exact import leave
from benchmarks.suite.job import Job, Outcome
from benchmarks.suite.meter import Meter
from benchmarks.suite.serve import serve

UPKEEP = {
    "delta.checkpointInterval": "100",
    "delta.enableExpiredLogCleanup": "true",
    "delta.logRetentionDuration": "interval 0 days",
}


class Table:
    """One table: its counts, and the handle that commits to it."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._handle = DeltaTable.create(str(path), schema, configuration=UPKEEP)
        self.counts: dict[str, int] = {}

    def add(self, txid: int, names: list[str], partial: list[int]) -> None:
        """Add to the counts of some words, and commit their rows as transaction `txid`."""
        counts = self.counts
        for word, n in zip(names, partial, strict=True):
            counts[word] = counts.get(word, 0) + n
        rows = pa.table(
            {"word": pa.array(names, pa.string()), "n": pa.array([counts[word] for word in names], pa.int64())}
        )
        self._append(txid, rows.append_column("txid", pa.array([txid] * len(names), pa.int64())))

    def _append(self, txid: int, rows: pa.Table) -> None:
        properties = CommitProperties(app_transactions=[Transaction("loop", txid)], max_commit_retries=0)
        write_deltalake(self._handle, rows, mode="append", commit_properties=properties)


def work(job: Job) -> Outcome:
    """Run a job: count, transaction by transaction."""
    schema = pa.schema([("word", pa.string()), ("n", pa.int64()), ("txid", pa.int64())])
    tables = [Table(Path(job.directory) / f"table-{number}", schema) for number in range(job.tables)]
    meter = Meter(job)
    for txid in range(1, job.last + 1):
        begun = time.perf_counter()
        names, partial = counted(job, txid)
        counted_at = time.perf_counter()
        for table in tables:
            table.add(txid, names, partial)
        ended = time.perf_counter()
        meter.committed(txid, (ended - counted_at) * 1e3, [(ended - begun) * 1e3])
    outcome = meter.outcome()
    for number, table in enumerate(tables):
        _leave(job, table.counts, number)
    return outcome


def counted(job: Job, txid: int) -> tuple[list[str], list[int]]:
    """Return the words of a transaction and their counts; with `columns` counted by Arrow, else one by one."""
    found = job.words(txid)
    if job.kind == "total":
        return [""], [len(found)]
    if job.columns:
        counts = pc.value_counts(found)
        return counts.field("values").to_pylist(), counts.field("counts").to_pylist()
    partial = Counter(found.to_pylist())
    return list(partial), list(partial.values())


def _leave(job: Job, counts: dict[str, int], number: int) -> None:
    rows = pa.table({"word": pa.array(counts, pa.string()), "n": pa.array(counts.values(), pa.int64())})
    leave(job, rows.select(["n"]) if job.kind == "total" else rows, number)


if __name__ == "__main__":
    serve(work)
