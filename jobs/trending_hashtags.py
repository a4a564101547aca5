"""Trending hashtags, Hailstorm's example: the most frequent ones of a stream, with counts, exactly once.

txstorm run jobs.trending_hashtags --engine local --end-of-input
txstorm state txstorm-data/trending-hashtags top
txstorm run "jobs.trending_hashtags:make('kafka://127.0.0.1:9092/hashtags', n=10)"

Spouts read hashtags, ``counts`` counts each of them, ``topn`` keeps the most frequent ones of its instance, and ``top``
those of all. States: ``counts`` (``tag``, ``state``), ``topn`` and ``top`` (``instance``, ``state``: a list of ``key``
and ``count``).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from txstorm import MonoidBolt, Topology, run
from txstorm.hailstorm import FileSink, HailstormFileSource, HailstormTopologyBuilder, Sink, console
from txstorm.monoids import Sum, TopN
from txstorm.sinks import DeltaSink

HASHTAGS = sorted((Path(__file__).parent / "data" / "hashtags").glob("*.txt"))


def convert(record: bytes) -> tuple[str, int] | None:
    """Return a hashtag, counted once; None for an empty line."""
    tag = record.decode().strip()
    return (tag, 1) if tag else None


def make(
    source: str | Path | Sequence[str | Path] = HASHTAGS,
    n: int = 20,
    counts: int = 2,
    topns: int = 2,
    max_batch_rows: int = 1000,
    emit: str = "batch",
    *,
    every: int = 500,
    out: str | None = None,
    store: Any = None,
) -> Topology:
    """Build the topology.

    Args:
        source: text files with one hashtag a line, each a partition, or ``"kafka://HOST:PORT/TOPIC"``.
        n: how many hashtags are kept.
        counts: number of instances that count.
        topns: number of instances that keep the most frequent ones.
        max_batch_rows: maximum number of hashtags in a transaction.
        emit: ``"batch"``: bolts emit what has changed once per transaction; ``"tuple"``: for every tuple.
        every: every so many results, one goes to the sink, and the last one at the end of input.
        out: where it goes: None: the table ``sinks/trends``; ``"console"``; or a file, which it replaces.
        store: where snapshots are saved; None: they are not.
    """
    kafka = isinstance(source, str) and source.startswith("kafka://")
    builder = HailstormTopologyBuilder("trending-hashtags", store)
    hashtags = source if kafka else HailstormFileSource(source)
    builder.set_spout("hashtags", hashtags, convert, ["tag", "n"], 2, max_batch_rows=max_batch_rows)
    counted = MonoidBolt("counts", Sum(), "tag", to_state="n", emit=emit)
    builder.set_bolt("counts", counted, counts).fields_grouping("hashtags", "tag")
    kept = MonoidBolt("topn", TopN(n), to_state=("tag", "state"), emit=emit)
    builder.set_bolt("topn", kept, topns).fields_grouping("counts", "tag")
    merged = MonoidBolt("top", TopN(n), to_state="state", emit=emit)
    builder.set_bolt("top", merged).global_grouping("topn")
    if out == "console":
        consumer = console()
    elif out is not None:
        consumer = FileSink(out, lines, "trends")
    else:
        consumer = DeltaSink("trends", {"state": TopN(n).column})
    builder.set_sink("sink", Sink(consumer, every)).global_grouping("top")
    return builder.build_topology()


def lines(values: tuple[Any, ...]) -> str:
    """Return hashtags and counts, one a line."""
    return "\n".join(f"{one['key']} {one['count']}" for one in values[1])


topology = make

if __name__ == "__main__":
    run(make(), end_of_input=True).awaitTermination()
