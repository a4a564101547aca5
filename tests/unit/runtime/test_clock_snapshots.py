"""Snapshots at clocks: no transaction passes a wanted clock, and the savepoint holds what was read up to it."""

from collections import Counter
from datetime import timedelta

import pytest
from runs import ended

import txstorm
from txstorm import NOT_READY, Duration, MonoidBolt, TransactionalTopologyBuilder, WindowAggregate
from txstorm.api.spout import Emitter, SpoutCoordinator, TransactionalSpout
from txstorm.errors import InputError, SpoutError
from txstorm.joins import IntervalJoin, Side
from txstorm.monoids import Max, Sum
from txstorm.operations.savepoints import cancel_snapshot, list_snapshots, want_snapshot
from txstorm.spouts import MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout
from txstorm.testing import TopologyTestDriver

WANTED = {"q0": 1, "q1": 1}
RECORDS = [("q0", "m"), ("q0", "k"), ("q1", "k"), ("q0", "k"), ("q1", "m"), ("q1", "m")]
EMITTED = [("m", 1), ("k", 1), ("k", 2), ("m", 2), ("k", 3), ("m", 3)]


class InOrder(TransactionalSpout):
    """A spout of one record a transaction: the first one that is there, and whose partition is not held."""

    def __init__(self, records, kind="heeds"):
        self.records, self.kind = records, kind

    def declare_output_fields(self, declarer):
        declarer.declare("word", "ts", "id")

    def coordinator(self, context):
        kinds = {"heeds": Heeding, "ignores": Ignoring, "lacks": Lacking, "ends": Ending, "late": Late}
        return kinds[self.kind](self.records)

    def emitter(self, context):
        return OneRecord()


class Lacking(SpoutCoordinator):
    """A coordinator with clocks that cannot stop at one."""

    def __init__(self, records):
        self.records = records

    def initialize_transaction(self, txid, prev_metadata):
        return self.planned(prev_metadata, None)

    def planned(self, before, upto):
        seen, read = Counter(), (before or {"read": {"q0": 0, "q1": 0}})["read"]
        for name, word in self.records:
            if seen[name] == read[name] and (upto is None or seen[name] <= upto.get(name, -1)):
                return {
                    "read": {**read, name: read[name] + 1},
                    "record": [word, 1000 * seen[name], f"{name}-{seen[name]}"],
                }
            seen[name] += 1
        return NOT_READY

    def clock(self, metadata):
        return {name: end - 1 for name, end in metadata["read"].items()} if metadata else {"q0": -1, "q1": -1}


class Heeding(Lacking):
    def initialize_transaction(self, txid, prev_metadata, upto=None):
        return self.planned(prev_metadata, upto)


class Ending(Heeding):
    def end_clock(self):
        return {"q1": 2}


class Late(Heeding):
    """Knows no partitions before it has planned, as that of a Kafka spout."""

    def clock(self, metadata):
        return super().clock(metadata) if metadata else {}


class Ignoring(Lacking):
    def initialize_transaction(self, txid, prev_metadata, **more):
        return self.planned(prev_metadata, None)


class OneRecord(Emitter):
    def emit_batch(self, attempt, metadata, collector):
        collector.emit(*metadata["record"])


def built(records, behind="", kind="heeds"):
    builder = TransactionalTopologyBuilder("words", "spout", InOrder(records, kind))
    fields = {"transform": lambda row, state: (row["word"], state, row["ts"], row["id"]), "emit": "tuple"}
    counts = MonoidBolt("counts", Sum(), "word", to_state=lambda row: 1, fields=("word", "n", "ts", "id"), **fields)
    builder.set_bolt("counts", counts).fields_grouping("spout", ["word"])
    if behind == "bolt":
        builder.set_bolt("most", MonoidBolt("most", Max(), "word", to_state="n")).fields_grouping("counts", ["word"])
    if behind == "window":
        sizes = WindowAggregate("word", table="sizes", ttl=timedelta(days=1), n="count")
        sizes = sizes.with_tumbling_window(Duration.seconds(1)).with_timestamp_field("ts")
        builder.set_bolt("sizes", sizes).fields_grouping("counts", ["word"])
    if behind == "join":
        sides = [Side(name, key="word", time="ts", id="id") for name in ("counts", "spout")]
        join = IntervalJoin(*sides, before=Duration.seconds(1), after=Duration.seconds(1))
        grouped = builder.set_bolt("join", join)
        for name in ("counts", "spout"):
            grouped.fields_grouping(name, ["word"])
    return builder.build_topology()


def content(data_dir):
    return {name: table.to_pylist() for name, table in txstorm.snapshot(data_dir).to_arrow().items()}


def commits(driver, count=20):
    """Commit up to `count` transactions, as long as the source has data that it may give."""
    for _ in range(count):
        driver.next_tuple()
        if driver.active:
            driver.commit()


@pytest.mark.parametrize("behind", ["", "bolt", "window", "join"])
def test_what_is_saved_is_a_run_that_has_stopped_there(behind, tmp_path):
    with TopologyTestDriver(built(RECORDS, behind), data_dir=tmp_path / "data") as driver:
        driver.commit(1)
        driver.want(WANTED)  # before the third record
        commits(driver)
        assert [row[:2] for row in driver.emitted("counts")] == EMITTED
    (made,) = list_snapshots(tmp_path / "data")
    assert (made.clock, made.txid, made.name, made.number) == (WANTED, 4, "snapshot-1", 1)
    txstorm.restore_savepoint(tmp_path / "data", made.name, tmp_path / "copy")
    with TopologyTestDriver(built(RECORDS[:3] + RECORDS[4:5], behind), data_dir=tmp_path / "stopped") as driver:
        commits(driver)
        assert driver.state("counts").to_pylist() == [{"word": "k", "state": 2}, {"word": "m", "state": 2}]
    assert content(tmp_path / "copy") == content(tmp_path / "stopped")


def counted(driver):
    return {row["n"]: row["state"] for row in driver.state("counts").to_pylist()}


def numbers(spout):
    builder = TransactionalTopologyBuilder("numbers", "spout", spout)
    builder.set_bolt(
        "counts", MonoidBolt("counts", Sum(), {"n": int}, to_state=lambda row: 1, emit=None)
    ).fields_grouping("spout", ["n"])
    return builder.build_topology()


@pytest.mark.parametrize("change", ["shrinks", "grows", "loses"])
def test_an_opaque_replay_is_bound_too(change):
    spout = OpaqueMemoryTransactionalSpout([list(range(9)), list(range(100, 109))], "n", take=2)
    with TopologyTestDriver(numbers(spout), pending=2) as driver:
        driver.want({"0": 4, "1": 3}, "here")
        driver.commit(1)
        spout.set_take({"shrinks": 1, "grows": 7, "loses": 2}[change])
        if change == "loses":
            spout.set_disabled(1)
        driver.fail(2)
        commits(driver, 6)
        if change == "loses":
            assert list_snapshots(driver.data_dir) == []
            spout.set_disabled(1, False)
        commits(driver)
        (made,) = list_snapshots(driver.data_dir)
        assert counted(driver) == dict.fromkeys([*range(9), *range(100, 109)], 1)
        state = driver.state("counts").as_of(made.txid).to_pylist()
        assert (made.clock, {row["n"] for row in state}) == ({"0": 4, "1": 3}, {*range(5), *range(100, 104)})


def test_an_opaque_replay_whose_partition_stays_away_is_given_up(caplog):
    spout = OpaqueMemoryTransactionalSpout([list(range(9)), list(range(100, 109))], "n", take=1)
    with TopologyTestDriver(numbers(spout), pending=3) as driver:
        driver.want({"0": 3, "1": 3})
        driver.commit(2)
        assert list(driver.active) == [3, 4, 5]  # 4 has the clock, so 5 is planned behind it
        spout.set_disabled(1)
        driver.fail(4)
        commits(driver)
        driver.advance(61)
        assert "lack data: 1" in caplog.text
        spout.set_disabled(1, False)
        commits(driver)
        assert (list_snapshots(driver.data_dir), set(counted(driver).values()), len(counted(driver))) == ([], {1}, 18)


def test_a_silent_partition_is_named_when_the_wait_is_over(caplog):
    records = [one for one in RECORDS if one[0] == "q0"]
    with TopologyTestDriver(built(records), settings={"snapshot_wait": 30}) as driver:
        driver.commit(1)
        driver.want(WANTED)
        commits(driver)
        assert driver.committed == 2
        driver.advance(29)
        driver.restart()  # the wait begins with the run
        driver.advance(29)
        assert driver.committed == 2
        driver.advance(1)
        commits(driver)
        assert "lack data: q1" in caplog.text
        assert (driver.committed, list_snapshots(driver.data_dir)) == (3, [])
        driver.restart()
        records.append(("q0", "late"))
        commits(driver)
        assert driver.committed == 4


def test_it_survives_a_restart_and_not_a_rewind(tmp_path):
    driver = TopologyTestDriver(built(RECORDS), data_dir=tmp_path)
    driver.commit(2)
    driver.want(WANTED, "first")
    driver.restart()
    driver.want(WANTED)  # asked for twice, it is one
    commits(driver)
    assert [(one.number, one.txid, one.name) for one in list_snapshots(tmp_path)] == [(1, 4, "first")]
    driver.close()
    txstorm.rewind(tmp_path, 2)
    driver = TopologyTestDriver(built(RECORDS), data_dir=tmp_path)
    driver.want({"q0": 1, "q1": 2})
    driver.close()
    txstorm.rewind(tmp_path, 1)
    driver = TopologyTestDriver(built(RECORDS), data_dir=tmp_path)
    commits(driver)
    assert ([one.number for one in list_snapshots(tmp_path)], driver.committed) == ([1], 6)
    driver.want({"q0": 2, "q1": 2})  # the present clock
    assert [(one.number, one.txid) for one in list_snapshots(tmp_path)] == [(2, 6), (1, 4)]
    driver.close()


@pytest.mark.parametrize(
    ("kind", "clock", "txids", "said"),
    [
        ("heeds", WANTED, [4], ""),
        ("late", WANTED, [4], ""),
        ("heeds", {"q0": 1}, [], "q1: the source has the partitions q0, q1"),
        ("heeds", {"q0": -1, "q1": -1}, [], 'the source begins at {"q0": -1, "q1": -1}'),
        ("heeds", {}, [], "it names no partitions"),
        ("late", {"q0": -1, "q1": -1}, [], "these partitions lack data: q0, q1"),
        ("late", {"q0": 1}, [], "the source has the partitions q0, q1; ask for a clock of these"),
        ("late", {"q0": 0, "q1": -1}, [1], ""),
    ],
)
def test_before_the_first_transaction(kind, clock, txids, said, tmp_path, caplog):
    """A wanted clock is checked at the start, or with the first transaction if the source tells its partitions only then."""
    if said and kind == "heeds":
        with pytest.raises(InputError, match=said):
            ended(built(RECORDS, kind=kind), tmp_path, want=clock)
        return
    assert ended(built(RECORDS, kind=kind), tmp_path, want=clock, settings={"snapshot_wait": 0.5}).committed == 6
    assert [one.txid for one in list_snapshots(tmp_path)] == txids
    assert said in caplog.text


@pytest.mark.parametrize(
    ("kind", "clock", "said"),
    [
        ("heeds", {"q0": 0, "q1": 9}, 'behind {"q0": 1, "q1": -1}'),
        ("heeds", {"q0": 9}, "q1: the source has the partitions q0, q1"),
        ("heeds", {"q0": 9, "q1": 9, "q2": 1}, "q2: the source has the partitions"),
        ("heeds", {"q0": 9, "q1": -2}, "integers of -1 or more"),
        ("ends", {"q0": 9, "q1": 3}, 'ends before it, at {"q1": 2}'),
        ("lacks", {"q0": 9, "q1": 9}, "'spout' cannot stop at a clock"),
    ],
)
def test_what_cannot_be_is_refused(kind, clock, said):
    with TopologyTestDriver(built(RECORDS, kind=kind)) as driver:
        driver.commit(1)
        with pytest.raises(InputError, match=said):
            driver.want(clock)
        commits(driver)
        assert driver.committed == len(RECORDS)


def test_one_clock_at_a_time_and_names_that_are_free(tmp_path):
    with TopologyTestDriver(built(RECORDS), data_dir=tmp_path) as driver:
        for clock, said in (({"q0": 1, "q1": 0, "q9": 0}, "q9"), ({"q0": 1}, "q1")):
            with pytest.raises(InputError, match=f"{said}: the source has the partitions"):
                driver.want(clock)
        driver.want(WANTED, "one")
        with pytest.raises(InputError, match=r"is wanted already, as 'one'"):
            driver.want({"q0": 2, "q1": 2})
        commits(driver)
        for name, said in (("one", "already"), ("-", "name")):
            with pytest.raises(InputError, match=said):
                driver.want({"q0": 2, "q1": 9}, name)


def test_a_coordinator_that_ignores_the_bound_ends_the_run():
    with TopologyTestDriver(built(RECORDS, kind="ignores")) as driver:
        driver.commit(1)
        driver.want(WANTED)
        with pytest.raises(SpoutError, match="must heed upto"):
            commits(driver)


def test_snapshots_of_what_is_planned_bind_nothing_and_only_the_newest_are_kept(tmp_path):
    spout = MemoryTransactionalSpout([list(range(9)), list(range(100, 109))], "n", take=1)
    with TopologyTestDriver(numbers(spout), data_dir=tmp_path, pending=2) as driver:
        snapshots, made = driver._stepper._driver.snapshots, []
        snapshots.complete.append(made.append)
        for name in (None, "kept", None, None):
            clock = snapshots.take(name)
            assert list_snapshots(tmp_path)[:1] == made[-1:]
            commits(driver, 2)
            assert (made[-1].clock, made[-1].txid) == (clock, driver.committed)
        assert [one.name for one in list_snapshots(tmp_path)] == ["snapshot-4", "snapshot-3", "kept"]
        assert list_snapshots(tmp_path)[2] == made[1]


def test_without_a_run_it_is_made_at_once_or_recorded_for_the_next_run(tmp_path):
    with TopologyTestDriver(built(RECORDS), data_dir=tmp_path) as driver:
        driver.commit(2)
        driver.advance(0)
    found = want_snapshot(tmp_path, name="now")
    assert (found["number"], found["txid"], found["clock"]) == (1, 2, {"q0": 1, "q1": -1})
    assert list_snapshots(tmp_path)[0].to_json() == {key: found[key] for key in list_snapshots(tmp_path)[0].to_json()}
    assert want_snapshot(tmp_path, WANTED)["number"] == 2
    assert cancel_snapshot(tmp_path)["clock"] == WANTED
    assert cancel_snapshot(tmp_path)["clock"] is None
    want_snapshot(tmp_path, WANTED, "later")
    with pytest.raises(InputError, match="wanted already"):
        want_snapshot(tmp_path, {"q0": 2, "q1": 2})
    with TopologyTestDriver(built(RECORDS), data_dir=tmp_path) as driver:
        commits(driver)
    assert [(one.name, one.txid) for one in list_snapshots(tmp_path)] == [("later", 4), ("now", 2)]
