"""Cost of long windows: runs that fill and slide the window of a join, are killed, and go on. Each is a process."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.joins.results import expected, total, until
from benchmarks.joins.rows import FORMS, stored
from benchmarks.nexmark.queries import WrongResult
from benchmarks.suite.job import Job
from benchmarks.suite.sides import Side
from benchmarks.window_tuples import Row

BATCH, SLIDES, WARM = 200_000, 40, 10
"""Rows of both sides in a transaction; transactions that slide the window; the first of these, which do not count."""
ROW_BYTES = 3 * 8
"""Arrow bytes of a row: key, time and id."""
FEW, MANY, MANY_QUICK = "join-narrow", "join-1e7", "join-1e6"


def measure(place: Path, engine: str, say: Callable[[str], None], *, quick: bool) -> Iterator[Row]:
    """Measure a short and a long window; yield the figures.

    Raises:
        SideFailed: a process failed.
        WrongResult: the results after the kill are wrong.
    """
    found = {}
    for name in (FEW, MANY_QUICK if quick else MANY):
        say(f"joins of {FORMS[name].window:,} right rows")
        job = Job(name, BATCH, transactions(name) + 1, loaded=False)
        with stored(name, job.last * BATCH) as source:
            job = replace(job, source=source)
            options = {"job": job.line(), "engine": engine, "place": str(place / name)}
            with _side("fill", place) as side:
                found[name] = _ask(side, options)
                side.kill()
            began = time.perf_counter()
            with _side("resume", place) as side:
                after = _ask(side, options)
                seconds = time.perf_counter() - began
                side.kill()
            if after["digest"] != total(expected(source, job.last * job.tuples)):
                msg = f"txstorm, {name}, after SIGKILL: WRONG: {after['digest']}"
                raise WrongResult(msg)
    few, many = found.values()
    much = f"{FORMS[name].window:.0e} right rows in the window".replace("e+0", "e")
    for what in ("ms", "commit ms"):
        ratio = many[what] / few[what]
        text = f"join: {what} of a transaction, {much}, against 1e5"
        yield Row(text, many[what], few[what], ratio, 1.5, 1.2, at_most=True)
    say(f"without pages of files, after a commit: at most {many['anonymous MiB']:,.0f} MiB")
    text, gib = f"join: GiB of the driver, {much}", many["MiB"] / 1024
    yield Row(text, gib, None, gib, 1.5, 1, at_most=True)
    text = f"join: bytes written per Arrow byte received, {much}"
    yield Row(text, many["written"], None, many["written"], 2.5, 1.6, at_most=True)
    yield Row(f"join: s from SIGKILL to the next commit, {much}", seconds, None, seconds, 15, 10, at_most=True)


def transactions(name: str) -> int:
    """Return the number of transactions that fill the window and slide it."""
    return -(-FORMS[name].window * 2 // BATCH) + SLIDES


def _side(function: str, logs: Path) -> Side:
    command = [sys.executable, "-m", "benchmarks.suite.serve", f"benchmarks.joins.buffer:{function}"]
    return Side(function, command, logs)


def _ask(side: Side, options: Mapping[str, Any]) -> Mapping[str, Any]:
    answer, _ = side.ask(json.dumps(dict(options)))
    result: Mapping[str, Any] = answer["result"]
    return result


# -- in the processes --------------------------------------------------------------------------------------------------


def fill(options: Mapping[str, Any]) -> dict[str, Any]:
    """Fill the window and slide it; return what that cost, and wait. The process is to be killed."""
    from benchmarks.joins.topologies import AddUp, both_sides, joined
    from benchmarks.peers.ours import highest
    from benchmarks.peers.window_bolts import begun, written

    job, before = Job.of(options["job"]), written()
    last = job.last - 1
    topology = joined(both_sides(replace(job, txids=last)), AddUp(until(job.source, job.last * job.tuples)))
    handle, marks = begun(options, topology, settings={"max_group_txids": 1, "max_spout_pending": 4})
    anonymous = []
    while marks.last < last:
        marks.wait(handle, marks.last + 1)
        anonymous.append(_anonymous())
    slid = marks.groups[-SLIDES + WARM :]
    return {
        "ms": statistics.median((after[1] - one[1]) * 1e3 for one, after in pairwise(slid)),
        "commit ms": statistics.median(sum(one[3].values()) for one in slid),
        "written": (written() - before) / (last * job.tuples * ROW_BYTES),
        "MiB": highest(),
        "anonymous MiB": max(anonymous),
    }


def _anonymous() -> float:
    """Return the MiB of this process that are in no file, so that the kernel cannot drop them."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon"))


def resume(options: Mapping[str, Any]) -> dict[str, Any]:
    """Commit the next transaction after a kill; return the digest of the results."""
    from benchmarks.joins.topologies import digest_of, topology_of
    from benchmarks.peers.window_bolts import begun

    job = Job.of(options["job"])
    handle, marks = begun(options, topology_of(job), until_txid=job.last)
    marks.wait(handle, job.last)
    return {"digest": digest_of(job, Path(options["place"]))}
