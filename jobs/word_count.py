"""Counts the words of text files in ordered transactions; by default of the King James Bible.

txstorm run jobs.word_count --available-now
txstorm run 'jobs.word_count:topology("books/*.txt", max_batch_rows=5000)'
txstorm state txstorm-data/word-count counts

A word is what ``re.findall(r"[a-z']+", line.lower())`` finds. Words are split and counted per transaction in parallel,
for several transactions at once; only the sums per word go through the commit, in txid order.
"""

from pathlib import Path

from txstorm import Topology, TransactionalTopologyBuilder, run
from txstorm.bolts import CountBy, SplitWords, SumByKey
from txstorm.spouts import FileSpout

BIBLE = Path(__file__).parent / "data" / "bible.txt"


def topology(path: str | Path = BIBLE, max_batch_rows: int = 770, parallelism: int = 2) -> Topology:
    """Build the topology over the files at `path` (may be a glob); 770 lines of the Bible are about 20,000 words."""
    lines = FileSpout(path, max_batch_rows=max_batch_rows)
    builder = TransactionalTopologyBuilder("word-count", "lines", lines, parallelism)
    builder.set_bolt("split", SplitWords("line"), parallelism).local_or_shuffle_grouping("lines")
    builder.set_bolt("partial", CountBy("word"), parallelism).local_or_shuffle_grouping("split")
    builder.set_bolt("counts", SumByKey("word", "n", "counts"), parallelism).fields_grouping("partial", ["word"])
    return builder.build_topology()


if __name__ == "__main__":
    run(topology(), available_now=True).awaitTermination()
