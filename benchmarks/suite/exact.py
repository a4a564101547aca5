"""The exactness check that ends every run: the counts a side kept against a recount of the input."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq

from benchmarks.joins import check as joins
from benchmarks.nexmark.queries import QUERIES, compare
from benchmarks.suite.job import Job, Outcome
from benchmarks.words import Ranks, message_ranks, ranks_of, words, zipf_ranks

COUNTS = "counts-{table}.parquet"
TEXT = "counts-{table}.tsv"
"""File to which sides that do not write Parquet write ``word <tab> n`` lines."""
BARE = ("stages", "jobs")
"""Forms of a job that keep no counts, so that there is nothing to check."""


class Inexact(Exception):
    """A side's counts are wrong, so its figures are invalid."""


def check(side: str, job: Job, outcome: Outcome | None = None) -> None:
    """Compare the counts that `side` left in the job's directory with a recount.

    Args:
        side: name of the side, for the message.
        job: the job that it ran.
        outcome: its outcome; for ``kafka``, with the ``ends`` up to which it has read.

    Raises:
        Inexact: a count is wrong; the message names table, key, expected and found count.
        WrongResult: the results of a query or join are wrong.
    """
    if job.form in BARE:
        return
    if job.kind in joins.KINDS:
        joins.compare(side, job)
        return
    if job.kind in QUERIES:
        compare(side, job.kind, job.last * job.tuples, job.source, Path(job.directory))
        return
    ends = outcome.more["ends"] if outcome is not None and job.kind == "kafka" else {}
    wanted = None if job.kind == "opaque" else recount(job, ends)
    for table in range(job.tables):
        found = found_counts(job, table)
        _compare(side, job, table, _read_so_far(job, found) if wanted is None else wanted, found)


def recount(job: Job, ends: Mapping[str, int]) -> Ranks:
    """Count the words of the input (of ``kafka`` up to `ends`); for ``total`` return one number."""
    if job.kind == "kafka":
        read = [message_ranks(int(partition), 0, end) for partition, end in ends.items()]
        return np.bincount(np.concatenate(read), minlength=job.keys)
    sizes = {txid: job.size(txid) for txid in range(1, job.last + 1)}
    if job.kind == "total":
        return np.array([sum(sizes.values())])
    counts = np.zeros(job.keys, dtype=np.int64)
    for txid, size in sizes.items():
        if txid <= job.loads or size >= job.keys // 16:
            counts += np.bincount(job.ranks(txid, range(size)), minlength=job.keys)
        else:
            np.add.at(counts, job.ranks(txid, range(size)), 1)
    return counts


def _read_so_far(job: Job, found: pa.Table) -> Ranks:
    """Recount an opaque source, an endless sequence, for as many words from its beginning as were counted."""
    read = int(found["n"].to_numpy().sum())
    return np.bincount(zipf_ranks(0, range(read), job.keys), minlength=job.keys)


def leave(job: Job, found: pa.Table, table: int = 0) -> None:
    """Write the columns ``word`` and ``n`` for the check; ``n`` alone for ``total``."""
    pq.write_table(found, Path(job.directory) / COUNTS.format(table=table))


def found_counts(job: Job, table: int) -> pa.Table:
    """Read the counts that the side left."""
    path = Path(job.directory) / COUNTS.format(table=table)
    if path.exists():
        return pq.read_table(path)
    plain = csv.ParseOptions(delimiter="\t", quote_char=False)
    names = csv.ReadOptions(column_names=["n"] if job.kind == "total" else ["word", "n"])
    types = csv.ConvertOptions(column_types={"word": pa.string(), "n": pa.int64()}, strings_can_be_null=False)
    return csv.read_csv(Path(job.directory) / TEXT.format(table=table), names, plain, types)


def _compare(side: str, job: Job, table: int, wanted: Ranks, found: pa.Table) -> None:
    where = f"{side}, {job.kind} of {job.last} transactions of {job.tuples} tuples, table {table}"
    numbers = found["n"].to_numpy().astype(np.int64)
    if job.kind == "total":
        ranks = np.zeros(len(numbers), dtype=np.int64)
    else:
        ranks = ranks_of(found["word"].combine_chunks(), job.keys)
    if (ranks < 0).any() or (ranks >= len(wanted)).any():
        msg = f"{where}: {found['word'][int(np.argmax((ranks < 0) | (ranks >= len(wanted))))]} is no word of the input"
        raise Inexact(msg)
    if (np.bincount(ranks, minlength=len(wanted)) > 1).any():
        msg = f"{where}: some keys are there twice ({len(numbers)} rows)"
        raise Inexact(msg)
    got = np.zeros(len(wanted), dtype=np.int64)
    got[ranks] = numbers
    wrong = np.flatnonzero(got != wanted)
    if len(wrong):
        name = "the total" if job.kind == "total" else words(wrong[:1], job.keys)[0]
        msg = f"{where}: {len(wrong)} counts are wrong; {name}: expected {wanted[wrong[0]]}, got {got[wrong[0]]}"
        raise Inexact(msg)
