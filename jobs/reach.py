"""Reach of a URL: the number of distinct followers of its tweeters. Storm's ReachTopology, in transactions.

txstorm run jobs.reach --available-now
txstorm state txstorm-data/reach reach

Two look-ups, a distinct union, and a committer with two inputs: the follower counts, and the URLs themselves, so that a
URL without tweets has reach 0.
"""

from collections import Counter

from txstorm import BatchBolt, Committer, KeyedState, TransactionalTopologyBuilder, run
from txstorm.bolts import CountBy, Distinct, FlatMap
from txstorm.spouts import MemoryTransactionalSpout

TWEETERS = {
    "foo.com/blog/1": ["sally", "bob", "tim", "george", "nathan"],
    "engineering.twitter.com/blog/5": ["adam", "david", "sally", "nathan"],
    "tech.backtype.com/blog/123": ["tim", "mike", "john"],
}
FOLLOWERS = {
    "sally": ["bob", "tim", "alice", "adam", "jim", "chris", "jai"],
    "bob": ["sally", "nathan", "jim", "mary", "david", "vivian"],
    "tim": ["alex"],
    "nathan": ["sally", "bob", "adam", "harry", "chris", "vivian", "emily", "jordan"],
    "adam": ["david", "carissa"],
    "mike": ["john", "bob"],
    "john": ["alice", "nathan", "jim", "mike", "bob"],
}
URLS = [*TWEETERS, "notaurl.com"]


class KeepReach(BatchBolt, Committer):
    """A committer that sums the partial counts; a URL itself adds 0. If a URL occurs again, its reach is replaced."""

    state = KeyedState("reach", key={"url": str}, value={"reach": int})

    def prepare(self, context, collector, attempt):
        self.reach, self.counts = context.state("reach"), Counter()

    def execute(self, tuple):
        self.counts[tuple["url"]] += tuple["n"] if "n" in tuple else 0

    def finish_batch(self):
        self.reach.put_many(self.counts)


tweeters = FlatMap(lambda row: [(row["url"], one) for one in TWEETERS.get(row["url"], ())], "url", "tweeter")
followers = FlatMap(lambda row: [(row["url"], one) for one in FOLLOWERS.get(row["tweeter"], ())], "url", "follower")
builder = TransactionalTopologyBuilder("reach", "urls", MemoryTransactionalSpout([URLS], "url", take=2))
builder.set_bolt("tweeters", tweeters, 2).shuffle_grouping("urls")
builder.set_bolt("followers", followers, 2).shuffle_grouping("tweeters")
builder.set_bolt("once", Distinct("url", "follower"), 2).fields_grouping("followers", ["url", "follower"])
builder.set_bolt("partial", CountBy("url"), 2).local_or_shuffle_grouping("once")
reach = builder.set_bolt("reach", KeepReach(), 2)
reach.fields_grouping("partial", ["url"]).fields_grouping("urls", ["url"])
topology = builder.build_topology()

if __name__ == "__main__":
    run(topology, available_now=True).awaitTermination()
