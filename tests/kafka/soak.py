"""Soak test: runs a topology on real servers and Spark, kills processes repeatedly, and verifies the result.

The data flow from Kafka through `soak_job` to Delta. The ledger is in ZooKeeper, and two drivers, each the other's
standby, run on Spark clusters of two executors. A seed determines which processes are killed, and when; the machine's
timing is not reproducible.
"""

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from servers.family import Member, members
from servers.kafka_reading import committed_values
from servers.running import Kafka, ZooKeeper, start_kafka, start_zookeeper
from servers.spark import cluster, is_executor, is_worker
from soak_tables import verify
from trouble_parties import WORDS, Drivers, Lease, Writer, logs, wait_until
from verifier import Verifier

PARTITIONS = 8
SESSION = 4.0
"""ZooKeeper session timeout in seconds; the lease of a killed driver is released after this time."""
PATIENCE = 600.0
"""Maximum seconds from a fault to the next commit; on a busy machine Spark takes minutes to start."""
LAST = 1800.0
"""Maximum seconds for reading the rest of the topic at the end."""
KINDS = {"worker": 5, "executor": 4, "driver": 2, "broker": 2, "zookeeper": 2}
"""Kinds of faults, with their relative frequencies."""

Say = Callable[[str], None]


class SoakFailed(Exception):
    """Raised when the topology makes no progress, or one of its parties ends unexpectedly."""


class Producer(Writer):
    """A transactional producer with a fixed rate, in which every word has one partition."""

    pause = 0.1
    aborts = 0.05
    rate = 1000

    def _batch(self) -> Iterator[tuple[str, int]]:
        for _ in range(round(self.rate * self.pause / 2)):
            word = self._rng.randrange(len(WORDS))
            yield WORDS[word], word % self.partitions


@dataclass(frozen=True)
class Commit:
    """A commit of the sink table, which every non-empty transaction changes; `planned`: when its last one was."""

    at: float
    planned: float
    last: int
    rows: int


class Commits(threading.Thread):
    """A thread that tails the log of a Delta table, and keeps the commits `seen`."""

    def __init__(self, table: Path) -> None:
        super().__init__(daemon=True, name="commits")
        self.seen: list[Commit] = []
        self._log = table / "_delta_log"
        self._next = 0
        self._over = threading.Event()

    def run(self) -> None:
        """Tail the log until `end` is called."""
        while not self._over.wait(0.02):
            self.look()

    def end(self) -> None:
        self._over.set()
        if self.is_alive():
            self.join()

    def look(self) -> None:
        while (path := self._log / f"{self._next:020d}.json").exists():
            self._next += 1
            actions = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
            [own] = [action["commitInfo"].get("txstorm", {}) for action in actions if "commitInfo" in action]
            if own.get("kind") == "commit":
                stats = [json.loads(action["add"]["stats"]) for action in actions if "add" in action]
                rows = sum(one["numRecords"] for one in stats)
                planned = own["txids"][-1]["stamp"] / 1e6
                self.seen.append(Commit(path.stat().st_mtime, planned, own["last"], rows))

    @property
    def records(self) -> int:
        """Number of rows committed so far."""
        return sum(one.rows for one in list(self.seen))

    def next_after(self, moment: float, *, planned: bool = False) -> Commit | None:
        """Return the first commit after `moment`; if `planned`, the first of a transaction planned after it."""
        for one in list(self.seen):
            if one.at > moment and (not planned or one.planned > moment):
                return one
        return None


class Fault(NamedTuple):
    """The kill of a process, and the seconds to the `next` commit, and to that of a transaction planned after it."""

    kind: str
    next: float
    fresh: float


def percentile(values: list[float], share: float) -> float | None:
    """Return the percentile of `values` at `share` (0 to 1) by the nearest-rank method; None if there are no values."""
    return round(sorted(values)[max(0, -int(-share * len(values) // 1) - 1)], 3) if values else None


@dataclass
class Soak:
    """One soak test in an empty directory, from starting the servers to the report; `seed` determines the kills.

    `rate` counts aborted records too, `rest` is the longest pause after a fault; `struck`: the first fault has begun.
    """

    place: Path
    seed: int
    say: Say
    rate: int = 6000
    rest: float = 3.0
    faults: list[Fault] = field(default_factory=list)
    struck: bool = False

    def run(self, minutes: float) -> dict[str, Any]:
        """Run the soak test for `minutes`; return the report described by `scripts/soak --help`."""
        self.say("starting Kafka, ZooKeeper and two drivers on Spark")
        with start_kafka(self.place / "kafka") as kafka, start_zookeeper(self.place / "zookeeper") as zookeeper:
            self._set_up(kafka, zookeeper)
            try:
                self._inject_faults(minutes * 60)
                self.say("no more faults: reading the rest")
                self.writer.end()
                self.drivers.finish(LAST)
            finally:
                self.close()
            self.commits.look()
            self.say("verifying")
            committed = committed_values(kafka.bootstrap, self.topic)
            verifier, records = verify(self.drivers.data_dir, self.topic, committed)
        return self._report(minutes, verifier, records)

    def _set_up(self, kafka: Kafka, zookeeper: ZooKeeper) -> None:
        self.kafka, self.zookeeper, self.rng = kafka, zookeeper, random.Random(self.seed)
        self.topic = kafka.make_topic(partitions=PARTITIONS)
        self.writer = Producer(kafka.bootstrap, self.topic, PARTITIONS, random.Random(self.rng.random()))
        self.writer.rate = self.rate
        self.lease = Lease(zookeeper.hosts, "/soak")
        options = ["--ledger", f"zookeeper:{zookeeper.hosts}/soak", "--set", f"zookeeper_session_timeout={SESSION}"]
        options += ["--set", "zookeeper_connect_timeout=60", "--set", "zookeeper_patience=120"]
        job = f"soak_job:topology({kafka.bootstrap!r}, {self.topic!r})"
        self.drivers = Drivers(self.place, job, options, engine="spark", environment=cluster(self.place))
        self.commits = Commits(self.drivers.data_dir / "sinks" / "rows")

    def close(self) -> None:
        """Stop the drivers, the producer and the tailing of the log; the servers are stopped by `run`."""
        self.drivers.close()
        self.commits.end()
        if self.writer.is_alive():
            with suppress(AssertionError):
                self.writer.end()

    def _inject_faults(self, seconds: float) -> None:
        began = time.time()
        self.drivers.start()
        self.writer.start()
        self.commits.start()
        self._recovery(began)
        self.say(f"the first commit, after {time.time() - began:.1f} s; faults begin")
        began, self.struck = time.monotonic(), True
        with self._progress(began), ThreadPoolExecutor(2) as threads:
            while time.monotonic() < began + seconds:
                made = [(kind, threads.submit(self._strike, kind, self._own())) for kind in self._draw()]
                for kind, future in made:
                    self._await(kind, future)
                time.sleep(self.rng.uniform(0, self.rest))

    def _own(self) -> random.Random:
        return random.Random(self.rng.random())

    def _draw(self) -> list[str]:
        """Draw the kinds of the next faults: usually one, with a probability of 20 % two at the same time."""
        chosen = {self.rng.choices([*KINDS], [*KINDS.values()])[0] for _ in range(1 + (self.rng.random() < 0.2))}
        return sorted(chosen)

    def _strike(self, kind: str, rng: random.Random) -> float | None:
        """Kill a process of this kind; return the time of the kill, None if there is none."""
        if kind in ("broker", "zookeeper"):
            return self._outage(self.kafka if kind == "broker" else self.zookeeper, rng)
        if kind != "driver":
            return self._kill_one(rng, is_executor if kind == "executor" else is_worker)
        leader = self.drivers.leader(self.lease)
        if leader is None:
            return None
        leader.kill()
        return time.time()

    def _await(self, kind: str, struck: Future[float | None]) -> None:
        at = struck.result()
        if at is not None:  # a process was found and killed
            self.faults.append(Fault(kind, *self._recovery(at)))

    def _recovery(self, since: float) -> tuple[float, float]:
        """Return the seconds from `since` to the next commit, and to the first of a transaction planned after it."""

        def recovered() -> bool:
            self._check_parties()
            return self.commits.next_after(since, planned=True) is not None

        try:
            wait_until(recovered, "a commit", PATIENCE)
        except AssertionError as error:
            raise SoakFailed(f"{error}\n{logs(self.place)}") from None
        first, fresh = self.commits.next_after(since), self.commits.next_after(since, planned=True)
        assert first is not None
        assert fresh is not None
        return first.at - since, fresh.at - since

    def _check_parties(self) -> None:
        if self.writer.failure is not None:
            raise SoakFailed(f"the writer has failed: {self.writer.failure!r}")
        if not self.struck and self.drivers.ended:
            code, said = self.drivers.ended[0]
            raise SoakFailed(
                f"a driver ended before the first fault, with exit code {code}: {said or 'it said nothing'}"
            )

    def _kill_one(self, rng: random.Random, fits: Callable[[Member, dict[int, Member]], bool]) -> float | None:
        """Kill a random process of the leading driver that `fits`; return the time of the kill, None if none fits."""
        until = time.monotonic() + 10
        while time.monotonic() < until:
            leader = self.drivers.leader(self.lease)
            family = {one.pid: one for one in members(leader.pid)} if leader is not None else {}
            fitting = [one for one in family.values() if fits(one, family)]
            if fitting and rng.choice(sorted(fitting, key=lambda one: one.pid)).kill():
                return time.time()
            time.sleep(0.2)
        return None

    def _outage(self, server: Kafka | ZooKeeper, rng: random.Random) -> float:
        server.kill()
        struck = time.time()
        time.sleep(rng.uniform(0.2, 2))
        server.restart()
        return struck

    @contextmanager
    def _progress(self, began: float) -> Iterator[None]:
        """Report progress every ten seconds until the context exits."""
        over = threading.Event()

        def tell() -> None:
            while not over.wait(10):
                self.say(f"{time.monotonic() - began:6.0f} s  {self._line()}")

        thread = threading.Thread(target=tell, daemon=True, name="progress")
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _line(self) -> str:
        seen, faults = list(self.commits.seen), list(self.faults)
        kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(Counter(one.kind for one in faults).items()))
        p50, p99 = (percentile([one.next for one in faults], share) for share in (0.5, 0.99))
        return (
            f"{len(faults)} faults ({kinds}), {self.commits.records:,} of {self.writer.written:,} records, "
            f"txid {seen[-1].last if seen else 0}, recovery p50 {p50} s, p99 {p99} s"
        )

    def _report(self, minutes: float, verifier: Verifier, records: int) -> dict[str, Any]:
        fresh = {kind: [one.fresh for one in self.faults if one.kind == kind] for kind in KINDS}
        for code, said in self.drivers.unexpected():
            verifier.problems.append(f"a driver ended with exit code {code}: {said[-500:]}")
        return {
            "minutes": minutes,
            "seed": self.seed,
            "faults": {kind: len(times) for kind, times in fresh.items()},
            "records": records,
            "txids": verifier.txids,
            "lost": verifier.lost,
            "twice": verifier.twice,
            "problems": verifier.problems,
            "recovery_p50_s": percentile([one.next for one in self.faults], 0.5),
            "recovery_p99_s": percentile([one.next for one in self.faults], 0.99),
            "fresh_p50_s": percentile([one.fresh for one in self.faults], 0.5),
            "fresh_p99_s": percentile([one.fresh for one in self.faults], 0.99),
            "fresh_p50_s_of": {kind: percentile(times, 0.5) for kind, times in fresh.items()},
            "fresh_max_s_of": {kind: round(max(times, default=0.0), 3) for kind, times in fresh.items()},
        }
