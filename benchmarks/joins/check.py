"""Comparison of the results of joins and look-ups with those of numpy."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from benchmarks.joins import lookups
from benchmarks.joins.results import expected, total
from benchmarks.joins.rows import FORMS
from benchmarks.nexmark.queries import DATA, DIGEST, WrongResult
from benchmarks.suite.job import Job

KINDS = (*FORMS, lookups.KIND)
"""Kinds of jobs that are joins."""


@cache
def _wanted(kind: str, directory: str, rows: int) -> list[int]:
    if kind == lookups.KIND:
        return lookups.expected(directory, rows)
    return total(expected({"directory": directory}, rows))


def compare(side: str, job: Job) -> None:
    """Compare the digest of the results that `side` left in the job's directory with numpy's.

    Raises:
        WrongResult: they differ; the message has both.
    """
    rows = job.last * job.tuples
    wanted, found = _wanted(job.kind, job.source["directory"], rows), _found(job, Path(job.directory))
    if found != wanted:
        msg = f"{side}, {job.kind} of {rows:,} rows: WRONG: expected [rows, pairs, sum] = {wanted}, got {found}"
        raise WrongResult(msg)


def _found(job: Job, directory: Path) -> list[int]:
    if (directory / DIGEST).exists():
        read_digest: list[int] = json.loads((directory / DIGEST).read_text())
        return read_digest
    if job.kind == lookups.KIND:
        return lookups.digest_of(directory / DATA)
    from benchmarks.joins.topologies import digest_of

    return digest_of(job, directory / DATA)
