"""Failures on a Spark cluster of real processes: dying executors and workers, and concurrent task attempts."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest
from programs import loaded
from recovery_cases import check, environment, eventually
from scenarios.cluster import topology
from servers.family import end_session, members
from servers.spark import cluster, home, hosts, is_executor
from watched import Diary

from txstorm.replay.audit import replay_txid
from txstorm.results.read import read_sink, read_state

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.long]


class Cluster:
    """A run of the scenario "cluster" on a Spark cluster of separate processes."""

    def __init__(self, place: Path, spark: dict[str, str], txids: int, troubles: Iterable[str] = ()) -> None:
        self.data_dir, self.diary, self.txids = place / "data", place / "diary", txids
        arguments = ["-m", "scenarios", "cluster", self.data_dir, self.diary, txids, *troubles]
        self.process = loaded().start(*arguments, env=environment(**spark), merged=True, session=True)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        end_session(self.process.pid)

    def commits(self) -> int:
        """Number of commits of a table, besides the two that create it."""
        return sum(1 for _ in (self.data_dir / "sinks/rows/_delta_log").glob("*.json")) - 2

    def goes_on(self, before: int) -> None:
        """Wait until there are more than `before` commits, or the run ends."""
        eventually(lambda: self.commits() > before or self.process.poll() is not None, 400)

    def kill_executor(self, rng: random.Random) -> bool:
        family = {one.pid: one for one in members(self.process.pid)}
        found = [one for one in family.values() if is_executor(one, family)]
        return bool(found) and rng.choice(found).kill()

    def ended(self) -> dict[str, int]:
        """Wait for the end of the run and check that every number was committed once; return the final progress."""
        assert self.process.wait(1200) == 0, self.process.printed[-4000:]
        told = json.loads(self.process.printed.splitlines()[-1])
        assert told["committed"] == self.txids
        check(self.data_dir, self.txids)
        numbers = list(range(4 * self.txids))
        assert read_state(self.data_dir, "seen").to_pylist() == [{"n": n, "times": 1} for n in numbers]
        rows = read_sink(self.data_dir, "rows").to_pylist()
        assert sorted(row["n"] for row in rows) == numbers
        assert all(row["_txid"] == row["n"] // 4 + 1 for row in rows)
        return told


def test_executors_that_are_killed(tmp_path, progress):
    seed = random.randrange(1 << 30)
    progress(f"seed {seed}")
    rng, killed = random.Random(seed), 0
    with Cluster(tmp_path, cluster(tmp_path), 150) as made:
        made.goes_on(0)
        while made.process.poll() is None and killed < 5:
            before = made.commits()
            killed += made.kill_executor(rng)
            made.goes_on(before)
            time.sleep(rng.uniform(0, 1))
        made.ended()
    assert killed >= 3


def test_workers_that_die_of_signals_faults_and_memory(tmp_path):
    troubles = [f"{name}:{txid}" for txid, name in enumerate(["kill", "segfault", "memory"] * 4, 5)]
    with Cluster(tmp_path, cluster(tmp_path), 30, troubles) as made:
        made.ended()
    assert len(list(tmp_path.glob("diary-*"))) == len(troubles)  # each was met


def test_digests_of_data_frames_after_the_loss_of_executors(tmp_path, spark):
    """An executor that dies takes what was shuffled with it: Spark computes it again, and observes it twice."""
    troubles = {name: txid for txid, name in ((0, "frames"), (4, "executor"))}
    with Cluster(tmp_path, cluster(tmp_path), 8, [f"{name}:{txid}" for name, txid in troubles.items()]) as made:
        made.ended()
    code = topology(tmp_path / "unused", 8, {0: "frames"})
    verdicts = [replay_txid(code, made.data_dir, txid) for txid in range(1, 9)]
    assert [one.attempt for one in verdicts if not one.equal] == []


def test_tasks_that_run_twice_at_once(tmp_path):
    slow = range(6, 26, 4)
    settings = {
        "spark.speculation": "true",
        "spark.speculation.interval": "50ms",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.minTaskRuntime": "100ms",
        "spark.executorEnv.PYTHONPATH": environment()["PYTHONPATH"],
    }
    spark = home(tmp_path, settings)
    with hosts(tmp_path, spark) as url:
        spark["TXSTORM_SPARK_MASTER"] = url
        with Cluster(tmp_path, spark, 30, [f"slow:{txid}" for txid in slow]) as made:
            told = made.ended()
    assert told["replays"] == 0
    notes = Counter(map(tuple, Diary(made.diary).read()))
    twice = {txid for (txid, _, _), count in notes.items() if count > 1}
    assert twice & set(slow), "no task had a copy"
