"""Bolts that several kinds of worlds share."""

import json
from collections import defaultdict

from window_schedules import micros

from txstorm import BatchBolt, Committer
from txstorm.api.state import SinkTable
from txstorm.results.read import read_sink


class Record(BatchBolt, Committer):
    """Committer that appends every tuple to the sink ``out``, as JSON; times in microseconds."""

    table = SinkTable("out", {"stream": str, "row": str})

    def prepare(self, context, collector, attempt):
        self.sink, self.seen = context.sink("out"), []

    def execute(self, tuple):
        self.seen.append((tuple.source_stream, json.dumps(tuple.values, default=micros)))

    def finish_batch(self):
        for stream, row in self.seen:
            self.sink.append(stream, row)


def recorded(data_dir):
    """Return txid → stream → the rows that `Record` has appended."""
    found = defaultdict(lambda: defaultdict(list))
    for row in read_sink(data_dir, "out").to_pylist():
        found[row["_txid"]][row["stream"]].append(json.loads(row["row"]))
    return found
