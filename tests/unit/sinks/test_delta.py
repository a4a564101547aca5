"""`DeltaSink`: the ready-made committer that appends tuples to a Delta table."""

from runs import ended

from txstorm import TransactionalTopologyBuilder
from txstorm.api.bolt import Committer, takes_batches
from txstorm.sinks import DeltaSink
from txstorm.spouts import MemoryTransactionalSpout


def topology(fields, *rows):
    builder = TransactionalTopologyBuilder("t", "rows", MemoryTransactionalSpout([list(rows)], fields, take=2))
    builder.set_bolt("sink", DeltaSink("words", {"word": str, "n": int})).global_grouping("rows")
    return builder.build_topology()


def test_delta_sink_is_a_committer_of_record_batches_that_appends_every_tuple_by_field_name(tmp_path):
    sink = topology(["n", "word"]).component("sink").object
    assert isinstance(sink, Committer)
    assert takes_batches(sink)
    rows = [(1, "a", 0), (2, "b", 0), (3, "c", 0)]
    handle = ended(topology(["n", "word", "x"], *rows), tmp_path / "data", until_txid=3)  # the last is empty
    found = handle.sink("words").to_pylist()
    assert found == [{"word": word, "n": n, "_txid": 1 + n // 3} for n, word, _ in rows]
