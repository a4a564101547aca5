"""Operator networks: the experiment of DADSTORM's report, and speed beside peers in the same run.

    scripts/bench dadstorm [--quick] [--rounds N] [--only PART …] [--out DIRECTORY]

Parts: `experiment`, the reach network under three semantics, undisturbed and with failures, with the timers that the
report compares; `semantics`, what the semantics cost; `reaction`, from a Crash to the first tuple of its share at a
sibling, and from a command in another terminal to its effect; `speed`, tweets per processor second against bytewax with
the same functions, and wall time against a hand-written pipeline of multiprocessing queues; `spark`, the same network
as a topology against one written by hand.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.machine import Spread
from benchmarks.peers.reach_queues import reach
from benchmarks.peers.reach_topology import by_hand
from benchmarks.suite.peers import PEERS, NotInstalled
from benchmarks.suite.plots import bars
from benchmarks.suite.sides import Side, SideFailed
from txstorm.dadstorm.configuration import parse
from txstorm.dadstorm.master.companion import COMMAND
from txstorm.dadstorm.master.network_run import NetworkOptions, NetworkRun
from txstorm.dadstorm.master.replica_topology import replica_topology
from txstorm.dadstorm.processes.fleet import FleetSettings
from txstorm.dadstorm.topology import build_topology
from txstorm.operations.lifecycle import ask
from txstorm.runtime.run import run

SEMANTICS = ("at-most-once", "at-least-once", "exactly-once")
REPORT = {"at-most-once": (7, 10), "at-least-once": (13, 73), "exactly-once": (12, 50)}
"""Seconds of the report: undisturbed, all right; with failures and freezes, where only the last one was."""
TIMERS = ((10.0, 12.0), (8.0, 10.0))
ROOT = Path(__file__).resolve().parents[1]
REACH = ROOT / "jobs" / "dadstorm"
NETWORK = """Semantics {semantics}
OP1 input_ops tweets.data rep_fact 2 routing hashing(1) address a:1,a:2 operator_spec FILTER 3,=,"www.example.org"
OP2 input_ops OP1 rep_fact 2 routing random address a:3,a:4 operator_spec CUSTOM mylib,QueryFollowersFile,getFollowers
OP3 input_ops OP2 rep_fact 2 routing hashing(1) address a:5,a:6 operator_spec UNIQ 1
OP4 input_ops OP3 rep_fact 1 routing primary address a:7 operator_spec COUNT
{script}
"""
START = "Start OP1\nStart OP2\nStart OP3\nStart OP4\n"
Line = tuple[str, float, str, float, float]
"""A figure: its name, the value, ``at least`` or ``at most``, the limit and the goal."""


@dataclass
class Ended:
    """What a run of the network did.

    Attributes:
        seconds: from the first Start to the end.
        cpu: processor seconds of master and replicas.
        result: `NetworkRun.result`, with `reach`, the number of tuples behind the last operator.
        marks: moments that a benchmark has noted.
    """

    seconds: float
    cpu: float
    result: Mapping[str, Any]
    marks: dict[str, float]


def tweets(place: Path, number: int) -> None:
    """Write `number` tweets, and the followers of the sample, into `place`."""
    sample = [line.partition(",")[2] for line in (REACH / "tweets.data").read_text().splitlines() if line[0] != "%"]
    with (place / "tweets.data").open("w") as file:
        file.writelines(f"{one},{sample[one % len(sample)]}\n" for one in range(number))
    shutil.copy(REACH / "followers.data", place)


def ours(
    place: Path,
    semantics: str = "exactly-once",
    script: str = START,
    timers: tuple[float, float] = TIMERS[0],
    beside: Callable[[NetworkRun, Path, dict[str, float]], None] | None = None,
    rows: int = 10_000,
) -> Ended:
    """Run the network on the tweets in `place` by replicas; `beside` is called meanwhile, from time to time."""
    configuration = parse(NETWORK.format(semantics=semantics, script=script), directory=place)
    fleet = FleetSettings(ping=timers[1], local=True)
    topology, network = replica_topology(configuration, NetworkOptions(timers[0], rows, fleet), "reach")
    marks: dict[str, float] = {}
    before, began = _cpu(), time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="txstorm-bench-") as data:
        handle = run(topology, engine="local", data_dir=Path(data) / "data", available_now=True)
        while not handle.awaitTermination(0.02):
            if beside is not None:
                beside(network, Path(data) / "data", marks)
        seconds, result = time.perf_counter() - began, network.result()
    return Ended(seconds, _cpu() - before, result, marks)


def _cpu() -> float:
    """Return the processor seconds of this process and of its children that have ended."""
    found = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in found)


# -- the experiment of the report -------------------------------------------------------------------------------------

INTERVAL = "Interval OP1 5\nInterval OP2 5\nInterval OP3 2\n"
FAILURES = f"{INTERVAL}{START}Wait 1500\nFreeze OP3 1\nWait 2000\nUnfreeze OP3 1\n"


def _fails(network: NetworkRun, _: Path, marks: dict[str, float]) -> None:
    """Kill a replica, and stop one as a machine stops that hangs, while each has something open; once each."""
    pids = {(one["operator"], one["replica"]): one.get("pid") for one in network.replicas()}
    for one, how in ((("OP2", 0), signal.SIGKILL), (("OP3", 0), signal.SIGSTOP)):
        pid = pids.get(one)
        if how.name not in marks and network.committed_txid and network.pending[one] > 10 and pid:
            os.kill(pid, how)
            marks[how.name] = time.perf_counter()
            return


def experiment(asked: argparse.Namespace) -> Iterator[Line]:
    """Run three semantics, undisturbed and with a crash, a freeze and a replica that hangs; print a table."""
    number = 600 if asked.quick else 2_000
    titles = "semantics", "timers", "failures", "seconds", "lost", "repeated", "result", "the report"
    table, plotted = ["| " + " | ".join(titles) + " |", "|" + " --- |" * len(titles)], dict[str, Spread]()
    with tempfile.TemporaryDirectory(prefix="txstorm-bench-") as directory:
        place = Path(directory)
        tweets(place, number)
        expected: Mapping[str, int] | None = None
        for semantics in SEMANTICS:
            for timers, failing in [(TIMERS[0], False), *((timers, True) for timers in TIMERS)]:
                script = FAILURES if failing else INTERVAL + START
                done = ours(place, semantics, script, timers, _fails if failing else None, 1000)
                emitted = {name: one["emitted"] for name, one in done.result["operators"].items()}
                expected = expected or emitted
                lost, repeated = done.result["lost"], done.result["repeated"]
                verdict = "right" if emitted == expected else "wrong"
                if failing and len(done.marks) < 2:
                    verdict += ", but no failure hit anything"
                said = f"{REPORT[semantics][failing]} s" if timers == TIMERS[0] else ""
                shown = f"{timers[0]:g} s, {timers[1]:g} s"
                row = (
                    semantics,
                    shown,
                    "yes" if failing else "no",
                    f"{done.seconds:.1f}",
                    lost,
                    repeated,
                    verdict,
                    said,
                )
                table.append("| " + " | ".join(map(str, row)) + " |")
                print(table[-1], file=sys.stderr, flush=True)
                if timers == TIMERS[0]:
                    kind = "failures" if failing else "undisturbed"
                    plotted[f"txstorm {semantics}, {kind}"] = Spread.of([done.seconds])
                    plotted[f"report {semantics}, {kind}"] = Spread.of([float(REPORT[semantics][failing])])
    print("\n".join(table))
    if asked.out is not None:
        asked.out.mkdir(parents=True, exist_ok=True)
        (asked.out / "dadstorm-semantics.svg").write_text(bars("Seconds of a run, by semantics", plotted))
    yield from ()


def semantics(asked: argparse.Namespace) -> Iterator[Line]:
    """Compare the time of the semantics, undisturbed and with failures."""
    number = 50_000 if asked.quick else 300_000
    failing = START + "Wait 500\nCrash OP2 0\nCrash OP3 1\nFreeze OP1 1\nWait 500\nUnfreeze OP1 1\n"
    with tempfile.TemporaryDirectory(prefix="txstorm-bench-") as directory:
        place = Path(directory)
        tweets(place, number)
        found: dict[tuple[str, bool], list[float]] = {}
        for _ in range(asked.rounds):
            for one in SEMANTICS:
                for fails in (False, True):
                    seconds = ours(place, one, failing if fails else START).seconds
                    found.setdefault((one, fails), []).append(seconds)
    middle = {key: statistics.median(seconds) for key, seconds in found.items()}
    for one, limit, goal in (("exactly-once", 1.6, 1.2), ("at-least-once", 2.0, 1.3)):
        plain = middle[one, False]
        yield f"undisturbed, {one} against at-most-once", plain / middle["at-most-once", False], "at most", 1.25, 1.05
        yield f"with failures against undisturbed, {one}", (middle[one, True] - 0.5) / plain, "at most", limit, goal


def reaction(asked: argparse.Namespace) -> Iterator[Line]:
    """Measure the moments from a Crash, and from a command of another process, to their effects."""
    crashes, commands = list[float](), list[float]()
    with tempfile.TemporaryDirectory(prefix="txstorm-bench-") as directory:
        place = Path(directory)
        tweets(place, 2_000)
        for _ in range(asked.rounds):
            done = ours(place, script=INTERVAL + START, beside=_sibling, rows=1000)
            crashes.append(done.marks["sibling"] - done.marks["crash"])
            done = ours(place, script=INTERVAL + START, beside=_command, rows=1000)
            commands += [seconds for name, seconds in done.marks.items() if name.startswith("command")]
    yield (
        "seconds from a Crash to the first tuple of its share at a sibling",
        statistics.median(crashes),
        "at most",
        1,
        0.2,
    )
    yield "seconds from a command in another terminal to its effect", statistics.median(commands), "at most", 0.5, 0.2


def _sibling(network: NetworkRun, data: Path, marks: dict[str, float]) -> None:
    """Crash OP2-0 in the middle of a delivery; note when its tuples reach OP2-1, which has ever fewer until then."""
    pending = network.pending["OP2", 1]
    if "crash" not in marks:
        if network.committed_txid and network.pending["OP2", 0] > 10 and pending > 10:
            marks.update(crash=time.perf_counter(), before=pending)
            ask(str(data), COMMAND, {"line": "Crash OP2 0"})
    elif "sibling" not in marks and pending > marks["before"]:
        marks["sibling"] = time.perf_counter()
    else:
        marks["before"] = min(marks["before"], pending)


def _command(network: NetworkRun, data: Path, marks: dict[str, float]) -> None:
    """Freeze and thaw a replica as another terminal does, four times."""
    if not network.committed_txid or len(marks) == 8:
        return
    line = "Unfreeze OP2 1" if len(marks) % 2 else "Freeze OP2 1"
    began = time.perf_counter()
    ask(str(data), COMMAND, {"line": line})
    marks[f"command {len(marks)}"] = time.perf_counter() - began


# -- speed ------------------------------------------------------------------------------------------------------------


def speed(asked: argparse.Namespace) -> Iterator[Line]:
    """Compare tweets per processor second with bytewax, and wall time with a pipeline of queues."""
    number = 100_000 if asked.quick else 1_000_000
    with tempfile.TemporaryDirectory(prefix="txstorm-bench-") as directory:
        place = Path(directory)
        tweets(place, number)
        mine, pipeline = list[Ended](), list[float]()
        for _ in range(asked.rounds):
            mine.append(ours(place))
            emitted = mine[-1].result["operators"]["OP4"]["emitted"]
            began, found = time.perf_counter(), reach(place)
            pipeline.append(time.perf_counter() - began)
            if (emitted, found) != (7, 7):
                raise SystemExit(f"the reach is 7, but ours is {emitted}, that of the pipeline {found}")
        seconds = statistics.median(one.seconds for one in mine)
        cpu = statistics.median(one.cpu for one in mine)
        print(
            f"ours: {seconds:.1f} s, {cpu:.1f} processor seconds; pipeline {statistics.median(pipeline):.1f} s",
            flush=True,
        )
        yield "wall time of a pipeline of queues against ours", statistics.median(pipeline) / seconds, "at least", 1, 3
        peer = _bytewax(place, asked.rounds)
        if peer is not None:
            yield "tweets per processor second against bytewax", peer / cpu, "at least", 0.3, 0.6


def _bytewax(place: Path, rounds: int) -> float | None:
    """Return the processor seconds of bytewax; None, with the reason, if it does not run here."""
    known, found = PEERS["bytewax"], list[float]()
    command = [known.command[0], "-m", "benchmarks.peers.reach_bytewax"]
    try:
        known.install(lambda text: print(text, file=sys.stderr, flush=True))
        with Side("bytewax", command, place) as side:
            for _ in range(rounds):
                answer, _outcome = side.ask(json.dumps({"place": str(place)}))
                if answer["reach"] != 7:
                    raise SystemExit(f"the reach is 7, but that of bytewax {answer['reach']}")
                found.append(answer["cpu"])
    except (NotInstalled, SideFailed) as error:
        print(f"bytewax: {error}", flush=True)
        return None
    print(f"bytewax: {statistics.median(found):.1f} processor seconds", flush=True)
    return statistics.median(found)


def spark(asked: argparse.Namespace) -> Iterator[Line]:
    """Compare the network as a topology on Spark with the same topology written by hand."""
    number = 100_000 if asked.quick else 1_000_000
    with tempfile.TemporaryDirectory(prefix="txstorm-bench-") as directory:
        place = Path(directory)
        tweets(place, number)
        network = parse(NETWORK.format(semantics="exactly-once", script=START), directory=place)
        sides = {
            "by hand": lambda: by_hand(place, 20_000),
            "ours": lambda: build_topology(network, "reach", max_batch_rows=20_000),
        }
        found: dict[str, list[float]] = {name: [] for name in sides}
        for turn in range(asked.rounds + 1):
            for name, make in sides.items():
                began = time.perf_counter()
                with tempfile.TemporaryDirectory(prefix="txstorm-bench-") as data:
                    handle = run(make(), engine=asked.engine, data_dir=Path(data) / "data", available_now=True)
                    handle.awaitTermination()
                if turn:
                    found[name].append(time.perf_counter() - began)
        hand, mine = (statistics.median(found[name]) for name in sides)
        print(f"by hand {hand:.1f} s, ours {mine:.1f} s", flush=True)
        yield f"tweets a second on {asked.engine} against the same topology by hand", hand / mine, "at least", 0.9, 1


PARTS: dict[str, Callable[[argparse.Namespace], Iterator[Line]]] = {
    "experiment": experiment,
    "semantics": semantics,
    "reaction": reaction,
    "speed": speed,
    "spark": spark,
}


def main() -> int:
    """Print the figures of the parts asked for; return 1 if a limit is missed."""
    parser = argparse.ArgumentParser("scripts/bench dadstorm", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--rounds", type=int, default=3, help="rounds (3)")
    parser.add_argument("--only", action="append", choices=PARTS, help="only this part; repeatable")
    parser.add_argument("--engine", choices=("spark", "local"), default="spark", help="engine of the part spark")
    parser.add_argument("--out", type=Path, metavar="DIRECTORY", help="write the plot of the experiment there")
    asked, missed = parser.parse_args(), False
    for name in asked.only or PARTS:
        for text, found, bound, limit, goal in PARTS[name](asked):
            held = found <= limit if bound == "at most" else found >= limit
            missed = missed or not held
            print(f"{text:72} {found:7.2f}  ({bound} {limit:g}, goal {goal:g}){'' if held else '  MISSED'}", flush=True)
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
