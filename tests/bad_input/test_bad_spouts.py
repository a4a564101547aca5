"""Faulty user-defined spouts: each method raises, or returns a value that cannot be stored."""

import json
import math

import pytest
from bad_input_cases import Keep, Says, go, refused
from spout_samples import OneClass, OpaquePartitionedSpout, PartitionedSpout, PlainSpout

from txstorm import TransactionalTopologyBuilder
from txstorm.errors import EmitError, FailedException, InputError, MetadataError, SpoutError, TopologyFailed
from txstorm.results.read import read_state

LAST = 3


def oops(*given, **more):
    raise KeyError("oops")


class Spout(PlainSpout):
    """A spout of three transactions of one word each."""

    fields = ("line",)

    def initialize_transaction(self, txid, prev_metadata):
        return {"txid": txid}

    def latest(self):
        return LAST

    def reached(self, metadata, mark):
        return metadata is not None and metadata["txid"] >= mark

    def emit_batch(self, attempt, metadata, collector):
        collector.emit("a")


def changed(**methods):
    """Return such a spout, with other methods of its own, its coordinator or its emitter."""
    return type("Changed", (Spout,), methods)()


def run(spout, data_dir, engine="local", keep=Keep, pending=1, **options):
    builder = TransactionalTopologyBuilder("spouts", "lines", spout).set_settings({"max_spout_pending": pending})
    builder.set_committer_bolt("keep", keep()).global_grouping("lines")
    return go(builder.build_topology(), data_dir, engine, **options)


def test_a_good_one(tmp_path):
    assert run(Spout(), tmp_path / "data") == LAST
    assert read_state(tmp_path / "data", "counts").to_pylist() == [{"word": "a", "n": LAST}]


JSON = "return values that JSON can represent"
ENDLESS: list = []
ENDLESS.append(ENDLESS)
METADATA = {
    "itself": (ENDLESS, "cannot be stored", JSON),
    "object": (object(), "metadata <object object at", JSON),
    "set": ({1}, "metadata {1} cannot be stored", JSON),
    "NaN": (math.nan, "metadata nan cannot be stored", JSON),
    "bytes": (b"a", "metadata b'a' cannot be stored", JSON),
    "number as key": ({1: 2}, "metadata {1: 2} has a key that is not a string", "use strings"),
}


@pytest.mark.parametrize("name", METADATA)
def test_metadata_that_is_not_json(name, tmp_path):
    """T42: metadata of types that JSON does not have are rejected."""
    value, found, cure = METADATA[name]

    def initialize(self, txid, prev_metadata):
        return {"txid": txid} if txid == 1 else value

    with refused(Says(MetadataError, "spout 'lines', txid 2", found, cure)):
        run(changed(initialize_transaction=initialize), tmp_path / "data")
    assert read_state(tmp_path / "data", "counts").to_pylist() == [{"word": "a", "n": 1}]
    assert run(Spout(), tmp_path / "data") == LAST


class Partitions(PartitionedSpout):
    fields = ("line",)

    def __init__(self, count=2, metadata=None):
        self.count, self.metadata = count, metadata

    def num_partitions(self):
        return self.count

    def emit_partition_batch_new(self, attempt, collector, partition, last_metadata):
        collector.emit("a")
        return self.metadata


class Opaque(OpaquePartitionedSpout):
    fields = ("line",)

    def emit_partition_batch(self, attempt, collector, partition, last_metadata):
        collector.emit("a")
        return object()


PARTITIONED = {
    "negative": (Partitions(-1), "spout 'lines', txid 1", "num_partitions() gave -1", "return an int >= 0"),
    "text": (Partitions("2"), "spout 'lines', txid 1", "num_partitions() gave '2'", "return an int >= 0"),
    "truth": (Partitions(True), "spout 'lines', txid 1", "num_partitions() gave True", "return an int >= 0"),
    "none": (Partitions(), "partition 0, txid 1", "emitted but no metadata", "return the metadata of what was emitted"),
    "set": (Partitions(metadata={1}), "partition 0, txid 1", "metadata {1} cannot be stored", JSON),
    "opaque": (Opaque(), "spout 'lines', partition 0, txid 1", "metadata <object", JSON),
}


@pytest.mark.parametrize("name", PARTITIONED)
def test_what_a_partitioned_spout_returns(name, tmp_path, make_engine):
    spout, thing, found, cure = PARTITIONED[name]
    with refused(Says(MetadataError, thing, found, cure)):
        run(spout, tmp_path / "data", make_engine())
    assert read_state(tmp_path / "data", "counts").num_rows == 0


RAISING = ["check", "coordinator", "emitter", "initialize_transaction", "is_ready", "payload", "latest", "reached"]


@pytest.mark.parametrize("name", [*RAISING, "emit_batch"])
def test_a_spout_that_raises(name, tmp_path):
    with refused(Says(TopologyFailed, "Changed" if name == "check" else "lines", "raised KeyError", "oops")) as caught:
        run(changed(**{name: oops}), tmp_path / "data")
    assert isinstance(caught.value.__cause__, KeyError) or "oops" in "".join(caught.value.__notes__)
    assert run(Spout(), tmp_path / "data") == LAST
    assert read_state(tmp_path / "data", "counts").to_pylist() == [{"word": "a", "n": LAST}]


def test_a_spout_that_cannot_be_closed_has_still_done_its_work(tmp_path):
    assert run(changed(close=oops), tmp_path / "data") == LAST


def test_a_coordinator_that_fails_for_a_while_is_asked_again(tmp_path):
    tries = tmp_path / "tries"

    def initialize(self, txid, prev_metadata):
        with tries.open("a") as file:
            file.write(str(txid))
        if len(tries.read_text()) < 3:
            raise FailedException
        return {"txid": txid}

    assert run(changed(initialize_transaction=initialize), tmp_path / "data") == LAST
    assert tries.read_text()[:4] == "1112"


def test_a_transactional_spout_that_replays_another_batch(tmp_path):
    counter = tmp_path / "emissions"

    def emit(self, attempt, metadata, collector):
        emissions = len(counter.read_text()) if counter.exists() else 0
        counter.write_text("x" * (emissions + 1))
        collector.emit("a")
        collector.digest("p", f"digest {emissions}")

    class FailOnce(Keep):
        def finish_batch(self):
            if len(counter.read_text()) == 1:
                raise FailedException
            super().finish_batch()

    found = "another batch for p than the first time (digest digest 1, expected digest 0)"
    with refused(Says(SpoutError, "txid 1", found, "use an opaque")):
        run(changed(emit_batch=emit), tmp_path / "data", keep=FailOnce)
    assert read_state(tmp_path / "data", "counts").num_rows == 0


class Counted(OneClass):
    """Base class of spouts that read their number of partitions from a file; each has `LINES` words."""

    fields = ("line",)

    def __init__(self, path):
        self.path = path

    def num_partitions(self):
        return int(self.path.read_text())

    def emit_partition_batch(self, attempt, collector, partition, last_metadata):
        number = last_metadata or 0
        if number < self.LINES:
            collector.emit(f"{partition}.{number}")
        return min(number + 1, self.LINES)


class Shrinks(Counted, PartitionedSpout):
    LINES = 2
    emit_partition_batch_new = Counted.emit_partition_batch


class OpaqueShrinks(Counted, OpaquePartitionedSpout):
    LINES = 5


@pytest.mark.parametrize(("count", "gone"), [(1, "partitions 1, 2 disappeared"), (2, "partition 2 disappeared")])
def test_partitions_of_a_transactional_spout_that_go_away(count, gone, tmp_path):
    path = tmp_path / "count"
    path.write_text("3")
    assert go_until(Shrinks(path), tmp_path / "data", 1) == 1
    path.write_text(str(count))
    says = Says(SpoutError, "spout 'lines', txid 2", gone, f"gave {count}, expected at least 3; a transactional")
    with refused(says):
        run(Shrinks(path), tmp_path / "data")
    path.write_text("4")
    run(Shrinks(path), tmp_path / "data")
    counts = {row["word"]: row["n"] for row in read_state(tmp_path / "data", "counts").to_pylist()}
    assert counts == {f"{partition}.{number}": 1 for partition in range(4) for number in range(2)}


def go_until(spout, data_dir, txid, **options):
    return run(spout, data_dir, until_txid=txid, available_now=False, **options)


def test_a_partition_of_an_opaque_spout_that_goes_away_is_said_once_and_kept(tmp_path, caplog):
    path = tmp_path / "count"
    path.write_text("2")
    done = []

    def listen(progress):
        done.append(progress)
        if progress.txid in (1, 4):
            path.with_suffix(".new").write_text("1" if progress.txid == 1 else "2")
            path.with_suffix(".new").replace(path)  # the emitter, which reads meanwhile, never finds it empty

    assert go_until(OpaqueShrinks(path), tmp_path / "data", 30, listeners=[listen]) == 30
    counts = {row["word"]: row["n"] for row in read_state(tmp_path / "data", "counts").to_pylist()}
    assert counts == {f"{partition}.{number}": 1 for partition in range(2) for number in range(5)}
    said = [notice for progress in done for notice in progress.reported]
    assert len(said) == 2
    assert said[0] in caplog.text
    assert said[0].startswith("spout 'lines': away: partition 1; positions are kept ({'1': ")
    assert said[1] == "spout 'lines': back: partition 1"
    assert sum("away" in record.getMessage() for record in caplog.records) == 1


def test_an_emitter_that_emits_for_another_txid(tmp_path):
    def emit(self, attempt, metadata, collector):
        self.kept = getattr(self, "kept", collector)
        self.kept.emit("a")

    found = "a tuple was emitted for txid 1 after that batch was over"
    with refused(Says(EmitError, "txid 2", found, "emit through the collector of the batch at hand")):
        run(changed(emit_batch=emit), tmp_path / "data", pending=8, settings={"max_pack_txids": 4})
    assert read_state(tmp_path / "data", "counts").to_pylist() in ([], [{"word": "a", "n": 1}])
    assert run(Spout(), tmp_path / "data") == LAST
    assert read_state(tmp_path / "data", "counts").to_pylist() == [{"word": "a", "n": LAST}]


def test_errors_of_the_input_keep_their_class():
    """Errors about invalid input keep their class, so that the exit code is 2 wherever they are detected."""
    assert all(issubclass(kind, InputError) and kind.exit_code == 2 for kind in (MetadataError, SpoutError))
    assert json.loads(json.dumps({"exit": TopologyFailed.exit_code})) == {"exit": 1}
