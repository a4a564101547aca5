"""Reach of a URL: how many different people follow somebody who tweeted it. Storm's ReachTopology, in transactions.

txstorm run jobs.reach --available-now
txstorm state txstorm-data/reach reach

Two look-ups one after the other, a union without duplicates in parallel, and one committer with two inputs: the
followers found, and the URLs themselves, so that one that nobody tweeted has reach 0.
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
    """Adds up the partial counts; a URL itself adds nothing. A URL that comes again gets a new reach."""

    state = KeyedState("reach", key={"url": str}, value={"reach": int})

    def prepare(self, context, collector, attempt):
        self.reach, self.counts = context.state("reach"), Counter()

    def execute(self, tuple):
        self.counts[tuple["url"]] += tuple["n"] if "n" in tuple else 0

    def finish_batch(self):
        self.reach.put_many(self.counts)


def tweeters(tuple):
    return [(tuple["url"], person) for person in TWEETERS.get(tuple["url"], ())]


def followers(tuple):
    return [(tuple["url"], person) for person in FOLLOWERS.get(tuple["tweeter"], ())]


builder = TransactionalTopologyBuilder("reach", "urls", MemoryTransactionalSpout([URLS], "url", take=2))
builder.set_bolt("tweeters", FlatMap(tweeters, "url", "tweeter"), 2).shuffle_grouping("urls")
builder.set_bolt("followers", FlatMap(followers, "url", "follower"), 2).shuffle_grouping("tweeters")
builder.set_bolt("once", Distinct("url", "follower"), 2).fields_grouping("followers", ["url", "follower"])
builder.set_bolt("partial", CountBy("url"), 2).local_or_shuffle_grouping("once")
reach = builder.set_bolt("reach", KeepReach(), 2)
reach.fields_grouping("partial", ["url"]).fields_grouping("urls", ["url"])
topology = builder.build_topology()

if __name__ == "__main__":
    run(topology, available_now=True).awaitTermination()
