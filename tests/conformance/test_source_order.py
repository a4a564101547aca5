"""Order of rows: receivers get what the source has, in its order, with any grouping and parallelism, on both engines."""

from pathlib import Path

import pytest
from seeded import seeded
from storm_world import OpaqueLog, PartitionedLog, World

from txstorm import BasicBolt, BatchBolt, Committer, CompositeSpout, SinkTable, TransactionalTopologyBuilder, run
from txstorm.api.output import Grouping
from txstorm.engine.local import LocalEngine
from txstorm.results.read import read_sink
from txstorm.spouts import FileSpout, MemoryTransactionalSpout

GROUPINGS = ("global", "shuffle", "fields", "all", "partial_key", "custom", "direct", "local_or_shuffle")


class ToTwo:
    """A custom grouping that sends a row to one or two tasks."""

    def prepare(self, component, stream, targets):
        self.targets = targets

    def choose_tasks(self, source_task, values):
        return {values[0] % self.targets, 0}


class Parse(BasicBolt):
    """Passes the last value of its input on, which says where the row is in its source, with a key."""

    def __init__(self, direct: int) -> None:
        self.direct = direct

    def execute(self, tuple, collector):
        place = tuple.values[-1]
        key = len(place) + sum(map(ord, place)) % 3
        if self.direct:
            collector.emit_direct(key % self.direct, key, place)
        else:
            collector.emit(key, place)

    def declare_output_fields(self, declarer):
        declarer.declare("key", "place", direct=bool(self.direct))


class Keep(BatchBolt, Committer):
    """Keeps what a task receives, in order."""

    tables = (SinkTable("kept", {"task": int, "number": int, "place": str}),)

    def prepare(self, context, collector, attempt):
        self.context, self.places = context, []

    def execute(self, tuple):
        self.places.append(tuple["place"])

    def finish_batch(self):
        for number, place in enumerate(self.places):
            self.context.sink("kept").append(self.context.task, number, place)


def some_source(draw, kind: str, name: str, directory: Path):
    """Return a spout, with a row's place as the last of its fields, and all places in the order of the source."""
    parts = [[f"{name}{p:02}-{n:03}" for n in range(draw.randrange(9))] for p in range(draw.randint(1, 5))]
    parts[0].append(f"{name}00-999")
    if kind == "memory":
        return MemoryTransactionalSpout(parts, ["place"], take=draw.randint(1, 4)), parts
    directory.mkdir()
    if kind == "files":
        for number, lines in enumerate(parts):
            (directory / f"{number}.txt").write_text("".join(f"{line}\n" for line in lines))
        return FileSpout(f"{directory}/*.txt", max_batch_rows=draw.randint(2, 12)), parts
    world = World(directory)
    world.amount = draw.randint(1, 4)
    for number, lines in enumerate(parts):
        world.append(number, *lines)
    return {"partitioned": PartitionedLog, "opaque": OpaqueLog}[kind](world), parts


def order_of_sources(draw, make_engine, tmp_path: Path) -> None:
    """Run a random source through a random grouping, and compare the order in which rows arrive with the source's."""
    kinds = draw.choices(["memory", "files", "partitioned", "opaque"], k=draw.choice([1, 1, 3]))
    names = [chr(ord("a") + number) for number in range(len(kinds))]
    sources, places = {}, []
    for name, kind in zip(names, kinds, strict=True):
        sources[name], parts = some_source(draw, kind, name, tmp_path / name)
        places += [place for part in parts for place in part]
    spouts, receivers, grouping = draw.randint(1, 4), draw.randint(1, 3), draw.choice(GROUPINGS)
    print(kinds, spouts, receivers, grouping)
    mixed = draw.sample(names, len(names))  # composite spouts emit by name, in whatever order they were declared
    spout = CompositeSpout({name: sources[name] for name in mixed}) if len(names) > 1 else sources["a"]
    streams = mixed if len(names) > 1 else ["default"]
    kept = rows_kept(spout, streams, spouts, receivers, grouping, make_engine, tmp_path / "data")
    assert {row["place"] for row in kept} == set(places)
    in_order = [(row["_txid"], row["task"], row["number"], row["place"]) for row in kept]
    for txid, task in {row[:2] for row in in_order}:
        found = [row[-1] for row in sorted(in_order) if row[:2] == (txid, task)]
        assert found == sorted(found), (txid, task)


def rows_kept(spout, streams, spouts, receivers, grouping, make_engine, data_dir):
    builder = TransactionalTopologyBuilder("order", "spout", spout, spouts)
    parse = builder.set_bolt("parse", Parse(receivers if grouping == "direct" else 0), spouts)
    for stream in streams:
        parse.local_or_shuffle_grouping("spout", stream)
    custom = ToTwo() if grouping == "custom" else None
    keys = ("key",) if grouping in ("fields", "partial_key") else ()
    builder.set_committer_bolt("keep", Keep(), receivers).grouping("parse", Grouping(grouping, keys, custom))
    topology = builder.build_topology()
    run(topology, engine=make_engine(), data_dir=data_dir, available_now=True).awaitTermination(120)
    return read_sink(data_dir, "kept").to_pylist()


@pytest.mark.parametrize("tasks", [1, 2, 3])
@pytest.mark.parametrize("kind", ["files", "partitions"])
def test_each_transaction_begins_where_the_last_one_ended(kind: str, tasks: int, tmp_path: Path) -> None:
    lines = [f"{number:02}" for number in range(39)]
    if kind == "files":
        for part in range(3):
            (tmp_path / f"{part}.txt").write_text("".join(f"{line}\n" for line in lines[13 * part : 13 * part + 13]))
        spout = FileSpout(f"{tmp_path}/*.txt", max_batch_rows=10)
    else:
        spout = MemoryTransactionalSpout([lines[13 * part : 13 * part + 13] for part in range(3)], ["place"], take=13)
    kept = rows_kept(spout, ["default"], tasks, 1, "global", LocalEngine, tmp_path / "data")
    assert [row["place"] for row in sorted(kept, key=lambda row: (row["_txid"], row["number"]))] == lines


@pytest.mark.parametrize("number", range(3))
def test_rows_arrive_in_the_order_of_the_source(number: int, make_engine, tmp_path: Path) -> None:
    draw = seeded()
    for case in range(2 if make_engine().name == "spark" else 6):
        directory = tmp_path / str(case)
        directory.mkdir()
        order_of_sources(draw, make_engine, directory)
