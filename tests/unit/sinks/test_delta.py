"""`DeltaSink`: the ready-made committer that appends tuples to a Delta table."""

import pyarrow as pa
import pytest

from txstorm.api.attempt import TransactionAttempt
from txstorm.api.bolt import Committer, takes_batches
from txstorm.api.context import TaskContext
from txstorm.errors import StateError
from txstorm.sinks import DeltaSink
from txstorm.state.sinks import SinkGroup


class Resources:
    def __init__(self, group):
        self.group = group

    def sink(self, component, task, name):
        assert name == "words"
        return self.group.handle(component, task, 1)


def run(batches):
    bolt = DeltaSink("words", {"word": str, "n": int})
    group = SinkGroup(bolt.table)
    context = TaskContext("t", "sink", 0, 1, resources=Resources(group))
    bolt.prepare(context, None, TransactionAttempt(1, 1))
    for batch in batches:
        bolt.execute_batch(batch)
    group.handle("sink", 0, 1).active = True
    bolt.finish_batch()
    group.end_txid(1)
    return group.changes(1, 1)


def test_delta_sink_is_a_committer_of_record_batches_that_appends_every_tuple_by_field_name():
    sink = DeltaSink("words", {"word": str})
    assert isinstance(sink, Committer)
    assert takes_batches(sink)
    rows = run(
        [pa.record_batch({"n": [1, 2], "word": ["a", "b"]}), pa.record_batch({"word": ["c"], "n": [3], "x": [0]})]
    )
    assert rows.to_pylist() == [{"word": word, "n": n, "_txid": 1} for word, n in (("a", 1), ("b", 2), ("c", 3))]
    assert run([]) is None
    with pytest.raises(
        StateError, match=r"sink 'words' \(sink\[0\], txid 1\): expected one column 'n', got \['word'\]"
    ):
        run([pa.record_batch({"word": ["c"]})])
