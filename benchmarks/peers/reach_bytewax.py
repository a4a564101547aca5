"""bytewax: the reach of a URL with the functions of txstorm.dadstorm, in one worker. Runs in a separate environment."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import bytewax.operators as op
from bytewax.dataflow import Dataflow
from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
from bytewax.outputs import DynamicSink, StatelessSinkPartition
from bytewax.testing import cluster_main

from benchmarks.machine import cpu_seconds
from benchmarks.suite.serve import serve_lines
from txstorm.dadstorm.library import QueryFollowersFile
from txstorm.dadstorm.values import split_line, value

SLICE = 1_000
URL = "www.example.org"


class Source(FixedPartitionedSource[str, int]):
    """The lines of one file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def list_parts(self) -> list[str]:
        return ["0"]

    def build_part(self, step_id: str, for_part: str, resume_state: int | None) -> Partition:
        return Partition(self.path)


class Partition(StatefulSourcePartition[str, int]):
    def __init__(self, path: Path) -> None:
        self._file = path.open(encoding="utf-8")

    def next_batch(self) -> list[str]:
        lines = [line.rstrip("\n") for _, line in zip(range(SLICE), self._file, strict=False)]
        if not lines:
            raise StopIteration
        return lines

    def snapshot(self) -> int:
        return 0


class Last(DynamicSink[Any]):
    """Keeps the last count."""

    def __init__(self, into: list[int]) -> None:
        self.into = into

    def build(self, step_id: str, worker_index: int, worker_count: int) -> Kept:
        return Kept(self.into)


class Kept(StatelessSinkPartition[Any]):
    def __init__(self, into: list[int]) -> None:
        self.into = into

    def write_batch(self, items: list[Any]) -> None:
        self.into[:] = [items[-1][1]]


def _new(seen: bool | None, follower: str) -> tuple[bool, Iterable[str]]:
    return True, () if seen else (follower,)


def _counted(number: int | None, _: str) -> tuple[int, Iterable[int]]:
    number = (number or 0) + 1
    return number, (number,)


def run(line: str) -> str:
    """Compute the reach of the tweets in a directory; return tweets per CPU second and the reach as JSON."""
    asked = json.loads(line)
    place, last = Path(asked["place"]), list[int]()
    followers = QueryFollowersFile(place).getFollowers
    flow = Dataflow("reach")
    tweets = op.map("split", op.input("lines", flow, Source(place / "tweets.data")), split_line)
    wanted = op.filter("filter", tweets, lambda fields: fields is not None and value(fields[2]) == URL)
    found = op.flat_map("followers", wanted, followers)
    keyed = op.map("key", found, lambda fields: (value(fields[0]), fields[0]))
    new = op.stateful_flat_map("unique", keyed, _new)
    op.output(
        "last", op.stateful_flat_map("count", op.map("one", new, lambda pair: ("", pair[1])), _counted), Last(last)
    )
    began, spent = time.perf_counter(), sum(cpu_seconds())
    cluster_main(flow, [], 0)
    seconds, spent = time.perf_counter() - began, sum(cpu_seconds()) - spent
    return json.dumps({"seconds": seconds, "cpu": spent, "reach": last[0]})


if __name__ == "__main__":
    serve_lines(run)
