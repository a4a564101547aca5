"""Storm's SlidingWindowTopology: sums of the last 30 integers, every 10, and averages of three such sums.

txstorm run jobs.sliding_window --available-now
txstorm windows txstorm-data/sliding-window

The running sum is in a state, so it outlives every transaction: what is new is added, what has expired is subtracted.
"""

from txstorm import Count, KeyedState, SinkTable, TransactionalTopologyBuilder, WindowedBolt, run
from txstorm.spouts import MemoryTransactionalSpout

INTEGERS = [[n] for n in range(1, 101)]


class SlidingWindowSum(WindowedBolt):
    """A windowed bolt that adds new integers to its sum and subtracts expired ones."""

    fields = ("sum",)
    state = KeyedState("running-sum", key={"name": str}, value={"sum": int})

    def prepare(self, context, collector):
        self.collector, self.sums = collector, context.state("running-sum")

    def execute(self, window):
        change = sum(one["value"] for one in window.get_new()) - sum(one["value"] for one in window.get_expired())
        self.collector.emit(self.sums.update("sum", lambda old: (old or 0) + change))


class TumblingWindowAverage(WindowedBolt):
    """A windowed bolt downstream of another one, that appends averages to a sink."""

    sink = SinkTable("averages", columns={"average": int})

    def prepare(self, context, collector):
        self.averages = context.sink("averages")

    def execute(self, window):
        sums = [one["sum"] for one in window]
        self.averages.append(sum(sums) // len(sums))


builder = TransactionalTopologyBuilder(
    "sliding-window", "integers", MemoryTransactionalSpout([INTEGERS], "value", take=7)
)
builder.set_bolt("sums", SlidingWindowSum().with_window(Count(30), Count(10))).global_grouping("integers")
builder.set_bolt("averages", TumblingWindowAverage().with_tumbling_window(Count(3))).global_grouping("sums")
topology = builder.build_topology()

if __name__ == "__main__":
    run(topology, available_now=True).awaitTermination()
