"""Cost of snapshots at clocks: while a clock 100 transactions ahead is wanted all the time, and at one a second.

    python -m benchmarks.wanted_clocks [--txids N] [--rows N] [--rounds N]

A MonoidBolt counts words of a memory spout of two partitions, on the local engine. The ways take turns in every round;
printed are the medians of tuples per second, and per processor second, in relation to a run without snapshots.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from dataclasses import replace

from txstorm import Clock, MonoidBolt, TransactionalTopologyBuilder, run
from txstorm.monoids import Sum
from txstorm.runtime.companion import Companion, CompanionSite
from txstorm.runtime.snapshots import ClockSnapshot
from txstorm.spouts import MemoryTransactionalSpout

AHEAD = 100
WAYS = ("none", "wanted", "every second")


class Taking(Companion):
    """Takes snapshots in one of the `WAYS`.

    Args:
        way: one of the `WAYS`.
        step: offsets that a transaction reads of each partition.
        end: offsets that each partition has.
    """

    def __init__(self, way: str, step: int, end: int) -> None:
        self._way, self._step, self._end = way, step, end
        self._next = 0.0
        self.taken: list[ClockSnapshot] = []

    def open(self, site: CompanionSite) -> None:
        """Begin."""
        self._snapshots = site.snapshots
        self._snapshots.complete.append(self.taken.append)

    def look(self) -> None:
        """Ask for the next snapshot when it is due."""
        planned = self._snapshots.planned if self._way != "none" else None
        if planned is None:
            return
        if self._way == "every second" and time.monotonic() >= self._next:
            self._next = time.monotonic() + 1
            self._snapshots.take()
        if self._way == "wanted" and self._snapshots.wanted is None:
            later = Clock({name: offset + AHEAD * self._step for name, offset in planned.items()})
            if all(offset < self._end for offset in later.values()):
                self._snapshots.want(later)


def measured(way: str, txids: int, rows: int) -> tuple[float, float, int]:
    """Run once; return tuples per second and per processor second, and the number of snapshots."""
    words = [(f"w{n % 1000}",) for n in range(txids * rows // 2)]
    builder = TransactionalTopologyBuilder("clocks", "words", MemoryTransactionalSpout([words] * 2, "word", rows // 2))
    counts = MonoidBolt("counts", Sum(), "word", to_state=lambda row: 1, emit=None)
    builder.set_bolt("counts", counts).fields_grouping("words", ["word"])
    taking = Taking(way, rows // 2, len(words))
    topology = replace(builder.build_topology(), companion=lambda topology: taking)
    with tempfile.TemporaryDirectory() as place:
        handle = run(topology, engine="local", data_dir=f"{place}/data", until_txid=txids)
        while handle.committed < 1:
            time.sleep(0.001)
        first, began, spent = handle.committed, time.monotonic(), time.process_time()
        handle.awaitTermination()
        tuples = (txids - first) * rows
        return tuples / (time.monotonic() - began), tuples / (time.process_time() - spent), len(taking.taken)


def main() -> None:
    """Measure, and print one line for each way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--txids", type=int, default=2000)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    orders = [[*WAYS[first % 3 :], *WAYS[: first % 3]] for first in range(options.rounds)]
    found = [{way: measured(way, options.txids, options.rows) for way in order} for order in orders]
    for way in WAYS:
        ratios = [statistics.median(one[way][at] / one["none"][at] for one in found) for at in (0, 1)]
        tuples = statistics.median(one[way][0] for one in found)
        print(
            f"{way}: {tuples:,.0f} tuples/s, × {ratios[0]:.3f}; per CPU second × {ratios[1]:.3f}; {found[-1][way][2]}"
        )


if __name__ == "__main__":
    main()
