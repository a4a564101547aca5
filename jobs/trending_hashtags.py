"""Trending hashtags, Hailstorm's example: the most frequent ones of a stream, with counts, exactly once.

txstorm run jobs.trending_hashtags --engine local --end-of-input
txstorm state txstorm-data/trending-hashtags top
txstorm run "jobs.trending_hashtags:make('kafka://127.0.0.1:9092/hashtags', n=10)"

`counts` counts each hashtag, `topn` keeps the most frequent ones of its instance, and `top` those of all.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from txstorm import MonoidBolt, Topology, run
from txstorm.hailstorm import FileSink, HailstormFileSource, HailstormTopologyBuilder, Sink, console
from txstorm.monoids import Sum, TopN
from txstorm.sinks import DeltaSink

HASHTAGS = sorted((Path(__file__).parent / "data" / "hashtags").glob("*.txt"))


def make(
    source: str | Path | Sequence[str | Path] = HASHTAGS,
    n: int = 20,
    counts: int = 2,
    topns: int = 2,
    max_batch_rows: int = 1000,
    emit: str = "batch",
    every: int = 500,
    out: str | None = None,
    store: Any = None,
) -> Topology:
    """Build the topology over text files, or ``"kafka://HOST:PORT/TOPIC"``."""
    builder = HailstormTopologyBuilder("trending-hashtags", store)
    hashtags = source if str(source).startswith("kafka://") else HailstormFileSource(source)
    builder.set_spout("hashtags", hashtags, convert, ["tag", "n"], 2, max_batch_rows=max_batch_rows)
    counted = MonoidBolt("counts", Sum(), "tag", to_state="n", emit=emit)
    builder.set_bolt("counts", counted, counts).fields_grouping("hashtags", "tag")
    kept = MonoidBolt("topn", TopN(n), to_state=("tag", "state"), emit=emit)
    builder.set_bolt("topn", kept, topns).fields_grouping("counts", "tag")
    builder.set_bolt("top", MonoidBolt("top", TopN(n), to_state="state", emit=emit)).global_grouping("topn")
    consumer: Any = FileSink(out, lines, "trends") if out else DeltaSink("trends", {"state": TopN(n).column})
    if out in ("console", "stderr"):
        consumer = console(error=out == "stderr")
    builder.set_sink("sink", Sink(consumer, every)).global_grouping("top")
    return builder.build_topology()


def convert(record: bytes) -> tuple[str, int] | None:
    return (tag, 1) if (tag := record.decode().strip()) else None


def lines(values: tuple[Any, ...]) -> str:
    return "\n".join(f"{one['key']} {one['count']}" for one in values[1])


topology = make

if __name__ == "__main__":
    run(make(), end_of_input=True).awaitTermination()
