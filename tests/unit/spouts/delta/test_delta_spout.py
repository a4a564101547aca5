"""The Delta spout without Spark: what it plans and reads beside other writers, where it begins, and what stops it."""

import json
import os
import random
import struct
import threading
import time
from base64 import b85encode
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import chain
from operator import itemgetter
from types import SimpleNamespace

import deltalake
import pyarrow as pa
import pytest
from programs import loaded
from recovery_cases import ended, environment
from scenarios.lake import copying, topology

from txstorm import NOT_READY, CompositeSpout, TransactionalTopologyBuilder, faults, rewind
from txstorm.bolts import SumByKey
from txstorm.engine.local import LocalEngine
from txstorm.errors import SettingError, SpoutError, TopologyError
from txstorm.replay.audit import audit
from txstorm.replay.recording import Recording, Span
from txstorm.sinks import DeltaSink
from txstorm.spouts import DeltaSpout, MemoryTransactionalSpout
from txstorm.spouts.delta.reading import read_share
from txstorm.spouts.delta.source_log import SourceLog
from txstorm.spouts.delta.vectors import Vector
from txstorm.testing import TopologyTestDriver

CONTEXT = SimpleNamespace(component="lake", parallelism=2)


def write(table, *numbers, mode="append", **more):
    deltalake.write_deltalake(str(table), pa.table({"n": list(numbers)}), mode=mode, **more)


class Source:
    """A spout as a run uses it, one transaction after the other."""

    def __init__(self, table, metadata=None, **options):
        self.spout = DeltaSpout(table, **options)
        self.coordinator, self.metadata = self.spout.coordinator(CONTEXT), metadata

    def next(self):
        """Return the rows of the next transaction; None if there is none."""
        planned = self.coordinator.initialize_transaction(1, self.metadata)
        if planned is NOT_READY:
            return None
        self.metadata = json.loads(json.dumps(planned))
        return self.rows(self.metadata)

    def rows(self, metadata):
        shares = self.coordinator.payload(metadata)
        found = (rows for share in shares for rows, _ in read_share(self.spout.path, self.spout._columns, share))
        return [row.get("n") for rows in found for row in rows.to_pylist()]

    def rest(self):
        return list(iter(self.next, None))


def test_a_snapshot_in_pages_then_versions_and_the_same_again_later(tmp_path):
    for number in range(5):
        write(tmp_path, number)
    source, planned = Source(tmp_path, max_batch_files=2), []
    for expected in ([0, 1], [2, 3], [4], None):
        assert source.next() == expected
        planned.append((source.metadata, expected))
    write(tmp_path, 5)
    deltalake.DeltaTable(str(tmp_path)).optimize.compact()
    assert source.next() == [5] and source.next() is None
    assert source.coordinator.caught_up(source.metadata)
    for number in (6, 7, 8):
        write(tmp_path, number)
    later = Source(tmp_path, source.metadata, max_batch_files=2)
    assert later.rest() == [[6, 7], [8]]
    assert all(later.rows(metadata) == rows for metadata, rows in planned if rows)
    assert len(json.dumps(later.metadata)) < 200


def test_limits_of_bytes_and_large_versions(tmp_path):
    for number in range(4):
        write(tmp_path, *range(number * 10, number * 10 + 10))
    size = max(path.stat().st_size for path in tmp_path.glob("*.parquet"))
    assert [len(rows) for rows in Source(tmp_path, max_batch_bytes=2 * size).rest()] == [20, 20]
    assert [len(rows) for rows in Source(tmp_path, start=0, max_batch_bytes=1).rest()] == [10] * 4
    deltalake.write_deltalake(str(tmp_path / "p"), pa.table({"n": [*range(6)], "p": [*range(6)]}), partition_by=["p"])
    found = Source(tmp_path / "p", start=0, max_batch_files=4).rest()
    assert [len(rows) for rows in found] == [4, 2] and sorted(chain(*found)) == [*range(6)]


def test_a_plan_reads_new_entries_only(tmp_path, monkeypatch):
    reads, real = [], SourceLog.entry
    for number in range(30):
        write(tmp_path, number)
    source = Source(tmp_path, max_batch_files=1)
    assert len(source.rest()) == 30
    monkeypatch.setattr(SourceLog, "entry", lambda log, version: reads.append(version) or real(log, version))
    listed = []
    monkeypatch.setattr(SourceLog, "_versions", lambda log: listed.append(1))
    for number in range(30, 33):
        write(tmp_path, number)
        reads.clear()
        assert source.next() == [number]
        assert source.coordinator.caught_up(source.metadata) and source.next() is None
        assert len(reads) <= 4 and min(reads) >= number
    assert not listed


def test_where_it_begins(tmp_path):
    for number in range(4):
        write(tmp_path, number)
        os.utime(tmp_path / f"_delta_log/{number:020d}.json", (1000 + number, 1000 + number))
    latest = Source(tmp_path, start="latest")
    assert not latest.coordinator.reached(None, 3) and latest.next() == [] and latest.next() is None
    assert latest.coordinator.reached(latest.metadata, 3)
    assert Source(tmp_path, start=2).rest() == [[2, 3]]
    at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=1000.5)
    assert Source(tmp_path, start=at).rest() == Source(tmp_path, start=at.replace(tzinfo=None)).rest() == [[1, 2, 3]]
    write(tmp_path, 4)
    again = Source(tmp_path, latest.metadata, start="latest")
    assert latest.rest() == again.rest() == [[4]]
    for start in (6, datetime.now(UTC) + timedelta(days=9)):
        with pytest.raises(SpoutError, match=r"lake.*is after its newest version, 4"):
            Source(tmp_path, start=start).next()
    deltalake.DeltaTable(str(tmp_path)).create_checkpoint()
    for version in (0, 1):
        (tmp_path / f"_delta_log/{version:020d}.json").unlink()
    with pytest.raises(SpoutError, match="version 1 is no longer in its log, which begins at version 2"):
        Source(tmp_path, start=1).next()
    assert sorted(chain(*Source(tmp_path).rest())) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("change", "kind", "ignored", "skipped"),
    [
        (lambda table: table.delete(), "deletes", [[3]], [[3]]),
        (lambda table: table.delete("n = 1"), "changes", [[2], [3]], [[3]]),
        (lambda table: table.update(updates={"n": "n + 10"}, predicate="n = 1"), "changes", [[11, 2], [3]], [[3]]),
    ],
)
def test_deletes_and_changes_stop_it_unless_ignored(tmp_path, change, kind, ignored, skipped):
    write(tmp_path, 1, 2)
    options = {"start": 1, "max_batch_files": 1}
    change(deltalake.DeltaTable(str(tmp_path)))
    write(tmp_path, 3)
    with pytest.raises(SpoutError, match=rf"version 1 \(\w+\) {kind} rows, .*\.parquet; .*ignore='{kind}'"):
        Source(tmp_path, **options).next()
    assert [sorted(rows, key=lambda n: -n) for rows in Source(tmp_path, ignore=kind, **options).rest()] == ignored
    assert Source(tmp_path, ignore=["change_commits"], **options).rest() == skipped
    if kind == "changes":
        with pytest.raises(SpoutError, match="changes rows"):
            Source(tmp_path, ignore="deletes", **options).next()


def test_rows_before_a_version_that_stops_it_are_read_first(tmp_path):
    write(tmp_path, 1, 2)
    write(tmp_path, 3)
    deltalake.DeltaTable(str(tmp_path)).delete()
    source = Source(tmp_path, start=0)
    assert source.next() == [1, 2, 3]
    with pytest.raises(SpoutError, match="version 2"):
        source.next()


def test_columns_that_change_midway(tmp_path):
    write(tmp_path, 1)
    source = Source(tmp_path)
    assert source.next() == [1]
    deltalake.write_deltalake(str(tmp_path), pa.table({"n": [2], "m": ["x"]}), mode="append", schema_mode="merge")
    with pytest.raises(SpoutError, match=r"version 1 changes its columns \['m'\]; start the topology again"):
        source.next()
    again = Source(tmp_path, source.metadata)
    assert [*again.spout.columns] == ["n", "m"] and again.rest() == [[2]]


def edit(table, version, change):
    """Change the actions of a log entry."""
    file = table / f"_delta_log/{version:020d}.json"
    actions = [json.loads(line) for line in file.read_text().splitlines()]
    for action in actions:
        change(action)
    file.write_text("\n".join(map(json.dumps, actions)))


def needs(feature):
    def change(action):
        if "protocol" in action:
            names = {"readerFeatures": [feature], "writerFeatures": [feature]}
            action["protocol"] |= {"minReaderVersion": 3, "minWriterVersion": 7, **names}

    return lambda table: edit(table, 0, change)


def gone(table):
    [path] = table.glob("*.parquet")
    path.unlink()


def outside(table):
    edit(table, 0, lambda action: action.get("add", {}).update(path="file:///etc/passwd"))


def schema(before, after):
    def change(action):
        if "metaData" in action:
            action["metaData"]["schemaString"] = action["metaData"]["schemaString"].replace(before, after)

    return lambda table: edit(table, 0, change)


@pytest.mark.parametrize(
    ("harm", "fault"),
    [
        (needs("catalogManaged"), "version 0 needs feature catalogManaged, which txstorm does not support"),
        (gone, r"\.parquet, which holds rows of version 0, is missing \(VACUUM\?\)"),
        (outside, "version 0: .*file:///etc/passwd"),
        (schema('"long"', '"timestamp_ntz"'), "column 'n': type timestamp_ntz has no values in Python; cast it"),
        (schema('"metadata":{}', '"metadata":{"__CHAR_VARCHAR_TYPE_STRING":"char(3)"}'), "'n': CHAR has values that"),
        (lambda table: (table / f"_delta_log/{0:020d}.json").write_text("{"), "log entry of version 0 cannot be read"),
        (lambda table: (table / f"_delta_log/{0:020d}.json").unlink(), "there is no Delta table"),
        (lambda table: next(table.glob("*.parquet")).write_bytes(b"PAR1"), r"of version 0: .*bytes"),
    ],
)
def test_what_it_cannot_read_is_one_clear_error(tmp_path, harm, fault):
    write(tmp_path, 1)
    harm(tmp_path)
    with pytest.raises(SpoutError, match=fault):
        Source(tmp_path, start=0).rest()


def test_errors_of_declarations(tmp_path):
    with pytest.raises(SettingError, match=r"start is -1.*; max_batch_files is 0.*; ignore has \['updates'\]"):
        DeltaSpout(tmp_path, start=-1, max_batch_files=0, ignore="updates")
    with pytest.raises(SpoutError, match="is not local"):
        DeltaSpout("s3://bucket/table")
    with pytest.raises(TopologyError, match="there is no Delta table; check the path"):
        topology(tmp_path / "none")
    write(tmp_path, 1)
    with pytest.raises(SpoutError, match="version 0 has no change data feed: set"):
        Source(tmp_path, changes=True).next()


def test_a_table_in_place_of_another_is_refused(tmp_path):
    write(tmp_path / "one", 1)
    source = Source(tmp_path / "one")
    source.next()
    (tmp_path / "one").rename(tmp_path / "old")
    write(tmp_path / "one", 2)
    write(tmp_path / "one", 3)
    with pytest.raises(SpoutError, match=r"is not the table that was read up to version 1 \(its id was"):
        Source(tmp_path / "one", source.metadata).next()
    with pytest.raises(SpoutError, match="expected 1 files from version 9 to 1, got 0"):
        Source(tmp_path / "old", start=0, ignore="changes").rows(source.metadata | {"from": [9, 0], "snapshot": False})


def test_deletion_vectors_with_lists_runs_and_bits(tmp_path):
    lists = struct.pack("<II2H", 12346, 1, 0, 1) + struct.pack("<I", 16) + struct.pack("<2H", 3, 70)
    runs = struct.pack("<IB4H", 12347 | 1 << 16, 1, 0, 3, 1, 0) + struct.pack("<H4HH", 2, 5, 1, 9, 1, 8)
    bits = struct.pack("<II2H", 12346, 1, 0, 4999) + struct.pack("<I", 16) + b"\xff" * 625 + bytes(8192 - 625)
    data = struct.pack("<IQ", 1681511377, 3) + b"".join(
        struct.pack("<I", key) + one for key, one in enumerate((lists, runs, bits))
    )
    expected = [3, 70, *((1 << 32) + n for n in (5, 6, 9, 10, 65536 + 8)), *((2 << 32) + n for n in range(5000))]
    own = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
    z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
    text = b85encode(data + bytes(-len(data) % 4)).decode().translate(str.maketrans(own, z85))
    inline = Vector.of({"storageType": "i", "pathOrInlineDv": text, "sizeInBytes": len(data)})
    assert inline.rows(tmp_path).tolist() == expected
    with pytest.raises(ValueError, match="damaged"):
        inline._replace(size=len(data) - 9000).rows(tmp_path)


def test_tasks_share_files_and_receivers_get_them_in_order(tmp_path):
    for number in range(6):
        write(tmp_path, number)
    composite = CompositeSpout({"lake": DeltaSpout(tmp_path, start=0, max_batch_files=3)})
    for made in (topology(tmp_path, start=0, max_batch_files=3), topology(tmp_path, spout=composite)):
        with TopologyTestDriver(made) as driver:
            for txid in (1, 2):
                driver.next_tuple()
                driver.ack(txid)
                driver.ack(txid)
            kept = driver.sink("rows").to_pylist()
            assert [[row["n"] for row in kept if row["_txid"] == txid] for txid in (1, 2)] == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.integration
def test_killed_beside_a_writer_that_appends_compacts_and_vacuums(tmp_path):
    lake, data_dir, chance, stopping, count = tmp_path / "lake", tmp_path / "data", random.Random(3), [], [1]
    write(lake, 0)

    def produce():
        while not stopping:
            size = chance.randint(1, 9)
            write(lake, *range(count[0], count[0] + size))
            count[0] += size
            if chance.random() < 0.2:
                table = deltalake.DeltaTable(str(lake))
                table.optimize.compact()
                table.vacuum(retention_hours=200, dry_run=False)
                table.create_checkpoint()

    producer = threading.Thread(target=produce)
    producer.start()
    try:
        for kill in range(2):
            program = loaded().start("-m", "scenarios.lake", lake, data_dir, env=environment())
            until = time.monotonic() + 120
            while program.printed.count("\n") < 1 + kill and time.monotonic() < until:
                assert program.poll() is None, program.complained
                time.sleep(0.01)
            program.kill()
            program.wait(60)
    finally:
        stopping.append(True)
        producer.join()
    handle = ended(topology(lake), data_dir)
    assert sorted(row["n"] for row in handle.sink("rows").to_pylist()) == [*range(count[0])]
    last, verdicts = handle.committed, []
    audit(topology(lake), Recording(data_dir), Span(1, last), LocalEngine(), verdicts.append)
    assert len(verdicts) == last and all(verdict.equal for verdict in verdicts)


def test_tables_of_one_topology_are_the_source_of_the_next(tmp_path):
    words, total = [("abc"[n % 3], n) for n in range(30)], {}
    for word, n in words:
        total[word] = total.get(word, 0) + n

    def first():
        builder = TransactionalTopologyBuilder("one", "words", MemoryTransactionalSpout([words], ["k", "n"], 3))
        builder.set_bolt("sums", SumByKey("k", "n", "sums")).fields_grouping("words", ["k"])
        builder.set_bolt("keep", DeltaSink("kept", {"k": str, "n": int})).shuffle_grouping("words")
        return builder.set_setting("max_group_txids", 1).build_topology()

    def crashed(made, name, point, nth):
        faults.arm(f"{point}:raise:{nth}")
        try:
            ended(made(), tmp_path / name)
        except faults.InjectedFault:
            return True
        finally:
            faults.arm("")
        return False

    points, count = ["p6.before", "p5.staged.after", "p6.after", "p7.1.written", "p8.after"], 0
    for number, point in enumerate(points):
        count += crashed(first, "one", point, 2)
        for table in ("sinks/kept", "changes/sums"):
            made = partial(copying, tmp_path / "one" / table)
            count += crashed(made, table.replace("/", "-"), points[-1 - number], 1)
    assert count > len(points)
    ended(first(), tmp_path / "one")
    handle = ended(copying(tmp_path / "one/sinks/kept"), tmp_path / "sinks-kept")
    assert {row["k"]: row["n"] for row in handle.state("sums").to_pylist()} == total
    handle = ended(copying(tmp_path / "one/changes/sums"), tmp_path / "changes-sums")
    seen = handle.sink("seen").to_pylist()
    newest = {row["k"]: (row["_txid"], row["n"]) for row in sorted(seen, key=itemgetter("_txid"))}
    assert {word: n for word, (_, n) in newest.items()} == total
    changes = deltalake.DeltaTable(str(tmp_path / "one/changes/sums")).to_pyarrow_table()
    assert len(seen) == changes.num_rows


def test_a_rewind_of_its_source_is_named_whatever_is_ignored_and_how_to_go_on(tmp_path):
    def first():
        builder = TransactionalTopologyBuilder("one", "words", MemoryTransactionalSpout([words], ["k", "n"], 3))
        builder.set_bolt("keep", DeltaSink("kept", {"k": str, "n": int})).shuffle_grouping("words")
        return builder.set_setting("max_group_txids", 1).build_topology()

    def second(**options):
        return copying(tmp_path / "one/sinks/kept", **options)

    words = [("abc"[n % 3], n) for n in range(12)]
    ended(first(), tmp_path / "one")
    ended(second(), tmp_path / "two")
    rewind(tmp_path / "one", 2)
    words[6:] = [("d", n) for n in range(7)]
    ended(first(), tmp_path / "one")
    for ignored in ((), "deletes", "changes", "change_commits"):
        with pytest.raises(SpoutError, match=r"rewinds the topology that writes it to its txid 2.*Rewind this"):
            ended(second(ignore=ignored), tmp_path / "two")
    rewind(tmp_path / "two", 0)
    handle = ended(second(), tmp_path / "two")
    assert sorted((row["k"], row["n"]) for row in handle.sink("seen").to_pylist()) == sorted(words)


def test_a_rewind_to_a_time_asks_the_versions_of_the_table(tmp_path):
    lake = tmp_path / "lake"
    for number in range(4):
        deltalake.write_deltalake(str(lake), pa.table({"k": ["a"], "n": [number]}), mode="append")
        os.utime(lake / f"_delta_log/{number:020d}.json", (1000 + number, 1000 + number))
    ended(copying(lake, start=0), tmp_path / "data")
    when = datetime.fromtimestamp(1002, UTC)
    found = rewind(tmp_path / "data", to_time=when, topology=copying(lake, start=0))
    assert (found["txid"], [(one["offset"], one["at_time"]) for one in found["sources"]]) == (2, [(2, 2)])
