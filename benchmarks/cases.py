"""The cases: each measures one promise of docs/benchmarks.md and returns plain figures with targets."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks import topologies
from benchmarks.machine import Spread, drift, rss_mib, spin
from benchmarks.running import STEPS, MakeEngine, Measured, engines, run_peer, run_topology, scratch
from txstorm.runtime.run import run
from txstorm.topology.graph import Topology
from txstorm.topology.settings import Settings

Say = Callable[[str], None]
Make = Callable[[int, int], Topology]
JOBS = int(Settings().max_jobs)


@dataclass(frozen=True)
class Figure:
    """One line of a report.

    Attributes:
        values: what was measured, by name; numbers, spreads or texts.
        target: what the promise compares, and how: ``ratio ≤ 1.3``; empty for what is only reported.
        met: whether the median keeps the promise; None without one.
    """

    case: str
    name: str
    values: Mapping[str, Any]
    target: str = ""
    met: bool | None = None

    def plain(self) -> dict[str, Any]:
        """The figure as JSON has it."""
        values = {key: asdict(value) if isinstance(value, Spread) else value for key, value in self.values.items()}
        return {"case": self.case, "name": self.name, "values": values, "target": self.target, "met": self.met}


@dataclass
class Bench:
    """What all cases share.

    Attributes:
        quick: a small run that shows the shape, not the figures.
        session: a Spark session, or None for the local engine.
        say: told what is being measured.
    """

    engine: str
    session: Any
    quick: bool
    rounds: int
    say: Say
    drifts: list[float] = field(default_factory=list)

    def engines(self) -> MakeEngine:
        """Makes the engine of a run."""
        return engines(self.engine, self.session, JOBS)

    def round(self, work: Callable[[], Any]) -> Any:
        """One round between two spins; how far they differ says how far to trust it."""
        before = spin()
        result = work()
        self.drifts.append(drift(before, spin()))
        return result


WORKLOADS: Mapping[str, Make] = {
    "global count": topologies.global_count,
    "word count": topologies.word_count,
    "word count, columns": topologies.word_count_columns,
}
# Column by column a job has so little to do that its commit weighs as much as it can: shown, but nothing is promised.
UNPROMISED = ("word count, columns",)
# Tuples a batch → transactions of a run, of a quick run, and the highest ratio to the peer that is promised.
SIZES: Mapping[int, tuple[int, int, float | None]] = {
    1_000: (1000, 40, None),
    20_000: (300, 8, 1.5),
    200_000: (24, 2, 1.3),
}


def throughput(bench: Bench) -> list[Figure]:
    """Tuples and transactions a second, commits, and the time against the same jobs without transactions."""
    return [
        against_peer(bench, name, make, tuples, *SIZES[tuples]) for name, make in WORKLOADS.items() for tuples in SIZES
    ]


def against_peer(bench: Bench, name: str, make: Make, tuples: int, full: int, quick: int, most: float | None) -> Figure:
    last = quick if bench.quick else full
    """The time of one workload against the same jobs without transactions."""
    most = None if name in UNPROMISED else most
    rounds: list[tuple[Measured, Measured, Measured]] = []
    for number in range(bench.rounds + (not bench.quick)):
        bench.say(f"{name}, {tuples:,} a batch, {last} transactions, round {number}")
        measured = bench.round(lambda: _beside(bench, make, tuples, last))
        if number or bench.quick:  # the first round warms up JVM, workers and file system
            rounds.append(measured)
    ratio = Spread.of([ours.seconds / peer.seconds for ours, peer, _ in rounds])
    return Figure(
        "throughput",
        f"{name}, {tuples:,} a batch",
        {
            "ratio": ratio,
            "to jobs alone": Spread.of([ours.seconds / jobs.seconds for ours, _, jobs in rounds]),
            "cpu ratio": Spread.of([ours.all_cpu / peer.all_cpu for ours, peer, _ in rounds]),
            "cpu to jobs alone": Spread.of([ours.all_cpu / jobs.all_cpu for ours, _, jobs in rounds]),
            **_summary([ours for ours, _, _ in rounds], [peer for _, peer, _ in rounds]),
        },
        f"ratio ≤ {most}" if most else "",
        ratio.median <= most if most else None,
    )


def _beside(bench: Bench, make: Make, tuples: int, last: int) -> tuple[Measured, Measured, Measured]:
    def peer(*, whole: bool) -> Measured:
        return run_peer(make(tuples, last), tuples, ours.packs, bench.engines(), JOBS, whole=whole)

    ours = run_topology(make(tuples, last), tuples, last, bench.engines(), {})
    return ours, peer(whole=True), peer(whole=False)


def _summary(ours: Sequence[Measured], peers: Sequence[Measured]) -> dict[str, Any]:
    best = min(ours, key=lambda one: one.seconds)
    return {
        "tuples/s": Spread.of([one.tuples_s for one in ours]),
        "txids/s": Spread.of([one.txids_s for one in ours]),
        "peer tuples/s": Spread.of([one.tuples_s for one in peers]),
        "best ratio": best.seconds / min(one.seconds for one in peers),
        **commit_values(ours),
        "jobs": len(best.packs),
        "largest pack": max(len(pack.inputs) for pack in best.packs),
        "driver cpu s": best.cpu,
        "peer's driver cpu s": min(one.cpu for one in peers),
        "workers cpu s": best.cpu_below,
        "task ns/tuple": best.busy / best.tuples * 1e9,
        "us/tuple": best.seconds / best.tuples * 1e6,
        "ms/txid": best.seconds / best.txids * 1e3,
    }


def commit_values(runs: Sequence[Measured]) -> dict[str, Any]:
    """Commits of several runs: their latency, size and steps."""
    return {
        "commit p50 ms": Spread.of([one.commit_ms(0.5) for one in runs]),
        "commit p99 ms": Spread.of([one.commit_ms(0.99) for one in runs]),
        "first commit ms": runs[0].groups[0].total,
        "txids/commit": runs[0].group_size,
        "steps ms": {step: min(one.step_ms(step) for one in runs) for step in STEPS},
    }


def pipelining(bench: Bench) -> list[Figure]:
    """What it brings to process transactions while earlier ones commit: `max_spout_pending` 4 against 1."""
    return [
        speedup_of(bench, "without packing", {"max_pack_txids": 1}, 1.2),
        speedup_of(bench, "with packing", {}, 2.5),
    ]


def speedup_of(bench: Bench, name: str, settings: Mapping[str, Any], least: float) -> Figure:
    """What four transactions in flight bring over one."""
    tuples, last = 1_000, 6 if bench.quick else 120
    runs: dict[int, list[Measured]] = {1: [], 4: []}
    for number in range(bench.rounds + (not bench.quick)):
        bench.say(f"pending 4 against 1, {name}, round {number}")
        for pending, into in runs.items():
            topology, wanted = topologies.word_count(tuples, last), {**settings, "max_spout_pending": pending}
            one = bench.round(lambda: run_topology(topology, tuples, last, bench.engines(), wanted))  # noqa: B023
            if number or bench.quick:
                into.append(one)
    speedup = Spread.of([four.txids_s / one.txids_s for one, four in zip(runs[1], runs[4], strict=True)])
    rates = {f"pending {pending} txids/s": Spread.of([one.txids_s for one in runs[pending]]) for pending in runs}
    return Figure(
        "pipelining",
        name,
        {"speedup": speedup, **rates, **commit_values(runs[4])},
        f"speedup ≥ {least}",
        speedup.median >= least,
    )


def commit(bench: Bench) -> list[Figure]:
    """The commit of one table of 10,000 keys of which 1,000 change, each transaction by itself."""
    keys, changed, last = 10_000, 1_000, 8 if bench.quick else 150
    settings = {"max_spout_pending": 1}
    runs = []
    for number in range(bench.rounds):
        bench.say(f"commit of {changed:,} changed keys of {keys:,}, round {number}")
        make = topologies.keyed_changes(keys, changed, last)
        runs.append(bench.round(lambda: run_topology(make, changed, last, engines("local", None), settings)))  # noqa: B023
    values = commit_values(runs)
    return [
        Figure("commit", f"{changed:,} of {keys:,} keys", values, "p50 ≤ 30 ms", values["commit p50 ms"].median <= 30)
    ]


def memory(bench: Bench) -> list[Figure]:
    """The driver's resident memory over many small transactions on the local engine, in a process of its own."""
    last = 200 if bench.quick else 10_000
    bench.say(f"memory over {last:,} small transactions")
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        samples = pool.apply(_resident, (last, last // 10))
    growth = samples[-1] / samples[1] - 1
    values = {"RSS MiB": [round(one, 1) for one in samples], "growth since the first fifth": growth}
    return [Figure("memory", f"{last:,} transactions", values)]


def _resident(last: int, every: int) -> list[float]:
    samples: list[float] = []

    def sample(progress: Any) -> None:
        if progress.txid % every == 0:
            samples.append(rss_mib())

    with scratch() as directory:
        topology = topologies.word_count_columns(100, last)
        handle = run(topology, engine="local", data_dir=directory, until_txid=last, listeners=[sample])
        handle.awaitTermination()
    return samples


CASES: Mapping[str, Callable[[Bench], list[Figure]]] = {
    "throughput": throughput,
    "pipelining": pipelining,
    "commit": commit,
    "memory": memory,
}
