"""Scenario for a Spark cluster of real processes: ``cluster DATA_DIR DIARY TXIDS [TROUBLE…]``.

A trouble is ``NAME:TXID``: it strikes once, in the first task that processes that transaction. With ``frames:0`` the
numbers come from a frame bolt.
"""

import ctypes
import os
import resource
import signal
import time
from pathlib import Path
from typing import Any

from watched import Diary

from txstorm import BasicBolt, TransactionalTopologyBuilder, run
from txstorm.bolts import CountByKey
from txstorm.sinks import DeltaSink
from txstorm.spouts import MemoryFrames, MemoryTransactionalSpout

SLOW = 4.0
"""Seconds that a slow task takes; its copy does not."""


def out_of_memory() -> None:
    """Simulate an exhausted machine: an allocation fails with `MemoryError`, then the process is killed."""
    resource.setrlimit(resource.RLIMIT_AS, (1 << 20, 1 << 20))
    try:
        bytearray(1 << 30)
    except MemoryError:
        os.kill(os.getpid(), signal.SIGKILL)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


TROUBLES = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "segfault": lambda: ctypes.string_at(0),
    "memory": out_of_memory,
    "executor": lambda: os.kill(parent_of(os.getppid()), signal.SIGKILL),
    "slow": lambda: time.sleep(SLOW),
}


class Hampered(BasicBolt):
    """A bolt that forwards numbers, records ``[txid, task, number]`` of each, and injects the given troubles."""

    fields = ("n",)

    def __init__(self, diary: Diary, troubles: dict[int, str]) -> None:
        self.diary, self.troubles = diary, troubles

    def prepare(self, context):
        self.context = context

    def execute(self, tuple, collector):
        txid = tuple.attempt.txid
        self.diary.note(txid, self.context.task, tuple["n"])
        name = self.troubles.get(txid)
        if name is not None and self._first(txid):
            TROUBLES[name]()
        collector.emit(tuple["n"])

    def _first(self, txid: int) -> bool:
        try:
            os.close(os.open(f"{self.diary.path}-{txid}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True


def topology(diary: Path, txids: int, troubles: dict[int, str]) -> Any:
    """Build the topology: transaction N has the numbers 4N - 4 to 4N - 1, in two partitions."""
    numbers = [range(part, 4 * txids, 2) for part in (0, 1)]
    spout = MemoryTransactionalSpout([list(part) for part in numbers], "n", take=2)
    if 0 in troubles:
        spout = MemoryFrames("n BIGINT", [[(n,) for n in range(first, first + 4)] for first in range(0, 4 * txids, 4)])
    builder = TransactionalTopologyBuilder("cluster", "numbers", spout, 2)
    if 0 in troubles:
        builder.set_frame_bolt("shuffled", lambda rows: rows.repartition(2, "n"), columns="n BIGINT").reads("numbers")
    source = "shuffled" if 0 in troubles else "numbers"
    builder.set_bolt("hampered", Hampered(Diary(diary), troubles), 2).fields_grouping(source, ["n"])
    builder.set_bolt("seen", CountByKey({"n": int}, "seen", count="times"), 2).fields_grouping("hampered", ["n"])
    builder.set_bolt("rows", DeltaSink("rows", {"n": int})).global_grouping("hampered")
    settings = {"min_interval": 0.1, "max_pack_txids": 2, "retry_backoff": 0.05, "retry_backoff_max": 0.5}
    return builder.set_settings(settings).build_topology()


def main(data_dir: str, diary: str, txids: str, *troubles: str) -> dict[str, int]:
    planned = {int(txid): name for name, _, txid in (trouble.partition(":") for trouble in troubles)}
    made = topology(Path(diary), int(txids), planned)
    handle = run(made, engine="spark", data_dir=data_dir, available_now=True)
    handle.awaitTermination()
    return {"committed": handle.committed, "replays": handle.progress.replays}
