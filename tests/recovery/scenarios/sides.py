"""Two files in one composite spout, each with tables of its own, which crash tests kill between these tables.

``sides DATA_DIR`` runs the topology to the end of both files, which lie beside the data directory.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from txstorm import CompositeSpout, Duration, TransactionalTopologyBuilder, run
from txstorm.bolts import CountByKey
from txstorm.joins import Deduplicator
from txstorm.sinks import DeltaSink
from txstorm.spouts import FileSpout

CAPS = {"left": 4, "right": 2}
"""Source → the rows that it may contribute to a transaction."""
ROWS = {"left": 15, "right": 18}


def lines(side: str) -> list[str]:
    """Return the rows of a side; every fifth repeats an earlier one."""
    return [f"{side}-{i - 3 if i % 5 == 4 else i}" for i in range(ROWS[side])]


def topology(directory: Path) -> Any:
    sources = {}
    for side, cap in CAPS.items():
        path = directory / f"{side}.txt"
        if not path.exists():
            path.write_text("".join(f"{line}\n" for line in lines(side)), encoding="utf-8")
        sources[side] = FileSpout(path, max_batch_rows=cap)
    builder = TransactionalTopologyBuilder("sides", "files", CompositeSpout(sources))
    for side in CAPS:
        builder.set_bolt(f"{side}-once", Deduplicator("line", keep=Duration.hours(1))).fields_grouping(
            "files", side, ["line"]
        )
        sink = builder.set_committer_bolt(f"{side}-keep", DeltaSink(f"{side}-rows", {"line": str}))
        sink.global_grouping(f"{side}-once", side)
        counts = builder.set_committer_bolt(f"{side}-count", CountByKey("line", f"{side}-counts"), 2)
        counts.fields_grouping("files", side, ["line"])
    builder.set_settings({"max_group_txids": 2, "max_spout_pending": 4})
    return builder.build_topology()


def main(data_dir: str) -> None:
    built = topology(Path(data_dir).parent)
    run(built, engine="local", data_dir=data_dir, available_now=True).awaitTermination()
