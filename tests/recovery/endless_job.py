"""``endless_job.py DATA_DIR DIARY ENGINE [HANGING_TXID]``: a driver script that goes on until somebody ends it."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from watched import Diary, Endless, watched_topology

from txstorm import run


class Pace:
    """Commits take a while, and one batch never ends."""

    def __init__(self, hanging: int) -> None:
        self.hanging = hanging

    def __call__(self, txid, nth):
        time.sleep(3600 if txid == self.hanging else 0.01)


def main(data_dir: str, diary: str, engine: str, hanging: str = "0") -> None:
    topology = watched_topology(Endless(), Diary(Path(diary)), process=Pace(int(hanging)), max_pack_txids=2)
    handle = run(topology, engine=engine, data_dir=data_dir)
    handle.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
