"""Counts of tweeted addresses and domains: two states that change in one transaction.

txstorm run jobs.tweet_counts --available-now
txstorm state txstorm-data/tweet-counts domains

With two databases, a crash can leave an address counted and its domain not, or vice versa. Here both states follow one
txid order: as of every transaction, the counts of a domain's addresses add up to the count of the domain.
"""

import re
from pathlib import Path
from urllib.parse import urlsplit

from txstorm import BasicBolt, Topology, TransactionalTopologyBuilder, run
from txstorm.bolts import CountByKey
from txstorm.spouts import FileSpout

TWEETS = Path(__file__).parent / "data" / "tweets.txt"
ADDRESS = re.compile(r"https?://[^\s<>\"]+", re.IGNORECASE)


class Addresses(BasicBolt):
    """A bolt that emits the addresses in a tweet, without trailing punctuation, and their domains."""

    fields = ("url", "domain")

    def execute(self, tuple, collector):
        for found in ADDRESS.findall(tuple["line"]):
            parts = urlsplit(found.rstrip(".,;:!?)'"))
            domain = (parts.hostname or "").removeprefix("www.")
            if domain:
                collector.emit(f"{domain}{parts.path.rstrip('/')}", domain)


def topology(path: str | Path = TWEETS, max_batch_rows: int = 10) -> Topology:
    """Build the topology over text files with one tweet per line; `path` may be a glob pattern."""
    builder = TransactionalTopologyBuilder("tweet-counts", "tweets", FileSpout(path, max_batch_rows=max_batch_rows))
    builder.set_bolt("addresses", Addresses(), 2).shuffle_grouping("tweets")
    builder.set_bolt("urls", CountByKey("url", "urls"), 2).fields_grouping("addresses", ["url"])
    builder.set_bolt("domains", CountByKey("domain", "domains"), 2).fields_grouping("addresses", ["domain"])
    return builder.build_topology()


if __name__ == "__main__":
    run(topology(), available_now=True).awaitTermination()
