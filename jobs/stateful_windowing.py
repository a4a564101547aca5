"""Storm's StatefulWindowingTopology: a running sum over windows of five integers that slide by three.

txstorm run jobs.stateful_windowing --available-now
txstorm state txstorm-data/stateful-windowing sum

Storm may evaluate windows again after a crash. Here the windows and the sum follow the txids: each window is evaluated
in exactly one committed transaction.
"""

from txstorm import Count, SinkTable, StatefulWindowedBolt, TransactionalTopologyBuilder, run
from txstorm.spouts import MemoryTransactionalSpout

INTEGERS = [[n] for n in range(1, 51)]


class WindowSum(StatefulWindowedBolt):
    """A stateful windowed bolt that adds the new integers of each window to its sum."""

    sink = SinkTable("sums", columns={"sum": int})

    def prepare(self, context, collector):
        self.log = context.sink("sums")

    def init_state(self, state):
        self.state = state

    def execute(self, window):
        total = self.state.get("sum", 0) + sum(one["value"] for one in window.get_new())
        self.state.put("sum", total)
        self.log.append(total)


bolt = WindowSum().with_window(Count(5), Count(3)).with_persistence()
builder = TransactionalTopologyBuilder(
    "stateful-windowing", "integers", MemoryTransactionalSpout([INTEGERS], "value", take=4)
)
builder.set_bolt("sum", bolt).global_grouping("integers")
topology = builder.build_topology()

if __name__ == "__main__":
    run(topology, available_now=True).awaitTermination()
