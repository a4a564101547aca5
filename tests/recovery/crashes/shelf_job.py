"""``shelf_job.py DATA_DIR SHELF DIARY KIND [UNTIL]``: runs the watched topology over a shelf, to be killed by tests."""

from __future__ import annotations

import sys
from pathlib import Path

from watched import Diary, PartitionedShelfSpout, Shelf, ShelfSpout, watched_topology

from txstorm import run

KINDS = {"planned": ShelfSpout, "partitioned": PartitionedShelfSpout}


def main(data_dir: str, shelf: str, diary: str, kind: str, until: str) -> None:
    topology = watched_topology(
        KINDS[kind](Shelf(Path(shelf))), Diary(Path(diary)), max_group_txids=1, max_spout_pending=4, max_pack_txids=2
    )
    run(topology, engine="local", data_dir=data_dir, until_txid=int(until)).awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
