"""Topologies over Delta tables: one that copies numbers, and one over a table of another topology."""

import sys

import txstorm
from txstorm import TransactionalTopologyBuilder
from txstorm.bolts import SumByKey
from txstorm.sinks import DeltaSink
from txstorm.spouts import DeltaSpout


def topology(lake, spout=None, **options):
    builder = TransactionalTopologyBuilder("lake", "lake", spout or DeltaSpout(lake, **options), 2)
    stream = ("lake", "lake") if spout else ("lake",)
    builder.set_bolt("keep", DeltaSink("rows", {"n": int}), 2).shuffle_grouping(*stream)
    return builder.build_topology()


def copying(table, **options):
    builder = TransactionalTopologyBuilder("two", "table", DeltaSpout(table, max_batch_files=1, **options), 2)
    builder.set_bolt("sums", SumByKey("k", "n", "sums"), 2).fields_grouping("table", ["k"])
    builder.set_bolt("keep", DeltaSink("seen", {"k": str, "n": int}), 2).shuffle_grouping("table")
    return builder.build_topology()


def main(lake, data_dir):
    """Read the table until the process is killed; print the txid of each commit."""
    listeners = [lambda done: print(done.txid, flush=True)]
    made = topology(lake, max_batch_files=2)
    txstorm.run(made, engine="local", data_dir=data_dir, listeners=listeners).awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
