"""Topology over a landing zone of CSV files."""

import sys
from pathlib import Path

import txstorm
from txstorm import TransactionalTopologyBuilder
from txstorm.sinks import DeltaSink
from txstorm.spouts import FileSpout


def topology(zone, spout=None, max_batch_rows=20):
    source = spout or FileSpout(zone / "*.csv", types={"n": int}, max_batch_rows=max_batch_rows)
    builder = TransactionalTopologyBuilder("landing", "files", source, 2)
    stream = ("files", "zone") if spout else ("files",)
    builder.set_bolt("keep", DeltaSink("rows", {"n": int}), 2).shuffle_grouping(*stream)
    return builder.build_topology()


def main(zone, data_dir):
    """Read the zone until the process is killed; print the txid of each commit."""
    listeners = [lambda done: print(done.txid, flush=True)]
    txstorm.run(topology(Path(zone)), engine="local", data_dir=data_dir, listeners=listeners).awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
