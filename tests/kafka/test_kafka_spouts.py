"""Kafka spouts on a real broker: every committed record is read exactly once, also after changes to topics."""

import json
import random
import threading
import time
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions
from kafka_cases import (
    COLUMNS,
    content,
    delete,
    eventually,
    keeping,
    kept,
    metadata,
    produce_with_aborts,
    recreate,
    rows,
)
from runs import ended
from seeded import seeded
from servers.kafka_reading import until_decided
from servers.running import Kafka

from txstorm import BasicBolt, BatchBolt, Clock, TransactionalTopologyBuilder, run
from txstorm.engine.local import LocalEngine
from txstorm.errors import FailedException, SpoutError
from txstorm.operations.savepoints import list_snapshots
from txstorm.runtime.companion import Beginning, Companion
from txstorm.sinks import DeltaSink
from txstorm.spouts import OpaqueTransactionalKafkaSpout, TransactionalKafkaSpout
from txstorm.testing import check_opaque_spout, check_transactional_spout

pytestmark = pytest.mark.integration

KINDS = [TransactionalKafkaSpout, OpaqueTransactionalKafkaSpout]
FIELDS = tuple(COLUMNS)


def spout_of(kafka: Kafka, topics, kind=TransactionalKafkaSpout, **options):
    chosen = {"fields": FIELDS, "max_batch_rows": 100, "discover_seconds": 0.2, "patience": 2.0, **options}
    return kind(topics, kafka.bootstrap, **chosen)


ON = [("local", one) for one in KINDS] + [pytest.param("spark", TransactionalKafkaSpout, marks=pytest.mark.spark)]


@pytest.mark.parametrize(("make_engine", "kind"), ON, indirect=["make_engine"])
def test_records_of_aborted_transactions_are_not_read(kafka_broker: Kafka, make_engine, tmp_path, kind):
    """Clocks pass them: that of the end, and one at which a snapshot is wanted, with partitions of different speed."""
    topic = kafka_broker.make_topic(partitions=4)
    produce_with_aborts(kafka_broker, topic, 800, 4, seeded())
    reader = Consumer({"bootstrap.servers": kafka_broker.bootstrap, "group.id": topic})
    ends = {f"{topic}-{n}": reader.get_watermark_offsets(TopicPartition(topic, n), 10)[1] for n in range(4)}
    reader.close()
    wanted = {partition: end * (2 + n) // 6 for n, (partition, end) in enumerate(ends.items())}
    handle = ended(keeping(spout_of(kafka_broker, topic, kind)), tmp_path / "data", make_engine(), want=wanted)
    assert kept(tmp_path / "data") == content(kafka_broker, topic)
    (made,) = list_snapshots(tmp_path / "data")
    saved = {(row["partition"], row["offset"]) for row in rows(tmp_path / "data") if row["_txid"] <= made.txid}
    assert made.clock == wanted
    assert saved == {one[2:] for one in content(kafka_broker, topic) if one[3] <= wanted[f"{topic}-{one[2]}"]}
    assert handle.clock() == {partition: end - 1 for partition, end in ends.items()}  # past what was aborted
    assert all("good" in value for value, *_ in kept(tmp_path / "data"))
    assert len({row["_txid"] for row in rows(tmp_path / "data")}) > 5


class Troubled(DeltaSink):
    """A sink that fails the first attempt at every third txid."""

    def __init__(self, directory):
        super().__init__("rows", COLUMNS)
        self.directory = directory

    def prepare(self, context, collector, attempt):
        super().prepare(context, collector, attempt)
        self.txid = attempt.txid

    def finish_batch(self):
        ticket = self.directory / f"failed-{self.txid}"
        if self.txid % 3 == 2 and not ticket.exists():
            ticket.touch()
            raise FailedException("once")
        super().finish_batch()


@pytest.mark.parametrize("kind", KINDS)
def test_every_record_is_read_once_while_records_arrive_and_batches_fail(kafka_broker: Kafka, tmp_path, kind):
    topic = kafka_broker.make_topic(partitions=3)
    produce_with_aborts(kafka_broker, topic, 300, 3, random.Random(1))
    builder = TransactionalTopologyBuilder("kafka", "spout", spout_of(kafka_broker, topic, kind), 2)
    builder.set_bolt("keep", Troubled(tmp_path)).global_grouping("spout")
    builder.set_settings({"retry_backoff": 0.01, "compact_on_stop": False})
    handle = run(builder.build_topology(), engine=LocalEngine(), data_dir=tmp_path / "data")
    writer = threading.Thread(target=produce_with_aborts, args=(kafka_broker, topic, 300, 3, random.Random(2)))
    writer.start()
    writer.join()
    handle.processAllAvailable()
    handle.stop()
    assert list(tmp_path.glob("failed-*"))
    assert kept(tmp_path / "data") == content(kafka_broker, topic)


def test_kafka_spouts_pass_the_checks_for_user_defined_spouts(kafka_broker: Kafka):
    """The Kafka spouts pass the checks that are provided for user-defined spouts (T31, T32)."""
    topic = kafka_broker.make_topic(partitions=3)
    produce_with_aborts(kafka_broker, topic, 60, 3, random.Random(3))
    seen = [(value, topic, partition, offset) for value, topic, partition, offset in content(kafka_broker, topic)]
    check_transactional_spout(lambda: spout_of(kafka_broker, topic, max_batch_rows=25), expected=seen, seeds=range(1))
    check_opaque_spout(
        lambda: spout_of(kafka_broker, topic, OpaqueTransactionalKafkaSpout, max_batch_rows=25),
        expected=seen,
        grow=lambda: kafka_broker.produce(topic, range(10)),
        seeds=range(1),
    )


def test_new_partitions_and_topics_are_read_and_recorded(kafka_broker: Kafka, tmp_path):
    prefix = kafka_broker.make_topic(partitions=1)
    kafka_broker.produce(prefix, range(10))
    spout = spout_of(kafka_broker, f"^{prefix}", start="latest")
    handle = run(keeping(spout), engine="local", data_dir=tmp_path / "data")
    eventually(lambda: handle.status["committed"] >= 1, "the first transaction, which pins where reading begins")
    assert kept(tmp_path / "data") == Counter()
    admin = kafka_broker.admin()
    admin.create_partitions([NewPartitions(prefix, 2)])[prefix].result(10)
    eventually(lambda: len(kafka_broker.leaders(prefix)) == 2, "the second partition")
    kafka_broker.produce(prefix, ["new partition"], 1)
    kafka_broker.produce(prefix, ["old partition"], 0)
    second = kafka_broker.make_topic(f"{prefix}-more")
    kafka_broker.produce(second, ["new topic"])
    eventually(lambda: kept(tmp_path / "data").total() == 3, "three records")
    handle.stop()
    assert {value for value, *_ in kept(tmp_path / "data")} == {"new partition", "old partition", "new topic"}
    new = [one for _, meta in metadata(tmp_path / "data") for one in meta.get("new", [])]
    assert sorted(new) == [f"{prefix}-more/0", f"{prefix}/0", f"{prefix}/1"]


def test_offset_gaps_from_compaction_are_accepted(kafka_broker: Kafka, tmp_path):
    topic = kafka_broker.make_topic(
        cleanup_policy="compact", segment_ms="100", min_cleanable_dirty_ratio="0.01", max_compaction_lag_ms="100"
    )
    producer = Producer({"bootstrap.servers": kafka_broker.bootstrap})
    for round_ in range(50):
        producer.produce(topic, f"{round_}", key=f"{round_ % 3}")
    producer.flush(10)

    def compacted():
        producer.produce(topic, "roll", key="roll")
        producer.flush(10)
        return content(kafka_broker, topic).total() < 20

    eventually(compacted, "compaction")
    ended(keeping(spout_of(kafka_broker, topic, max_batch_rows=7)), tmp_path / "data")
    assert kept(tmp_path / "data") == content(kafka_broker, topic)


def test_records_after_an_open_transaction_wait_for_its_end(kafka_broker: Kafka, tmp_path):
    topic = kafka_broker.make_topic()
    spout = spout_of(kafka_broker, topic)
    kafka_broker.produce(topic, ["before"])
    writer = Producer({"bootstrap.servers": kafka_broker.bootstrap, "transactional.id": topic})
    writer.init_transactions(30)
    writer.begin_transaction()
    writer.produce(topic, "inside", partition=0)
    writer.flush(10)
    kafka_broker.produce(topic, ["after"])
    ended(keeping(spout), tmp_path / "data")
    assert [row["value"] for row in rows(tmp_path / "data")] == ["before"]
    writer.commit_transaction(30)
    until_decided(kafka_broker.bootstrap, topic, seconds=30)
    ended(keeping(spout), tmp_path / "data")
    assert [row["value"] for row in rows(tmp_path / "data")] == ["before", "inside", "after"]


def filled(kafka: Kafka) -> str:
    """Return a new topic with the records 0 to 99."""
    topic = kafka.make_topic()
    kafka.produce(topic, range(100))
    return topic


def read_twenty(kafka: Kafka, data_dir: Path, kind=TransactionalKafkaSpout):
    """Read twenty records of a new topic in two transactions; return the topic and the spout."""
    topic = filled(kafka)
    spout = spout_of(kafka, topic, kind, max_batch_rows=10)
    ended(keeping(spout), data_dir, until_txid=2)
    return topic, spout


def delete_up_to(bootstrap: str, topic: str, offset: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    [done] = admin.delete_records([TopicPartition(topic, 0, offset)]).values()
    done.result(10)


def test_deleted_records_stop_a_transactional_spout(kafka_broker: Kafka, tmp_path):
    topic, spout = read_twenty(kafka_broker, tmp_path / "data")
    delete_up_to(kafka_broker.bootstrap, topic, 50)
    with pytest.raises(SpoutError, match=rf"{topic}/0: offsets 20 to 49 .*begins at 50"):
        ended(keeping(spout), tmp_path / "data")
    assert kept(tmp_path / "data").total() == 20


def test_a_new_directory_begins_behind_a_clock(kafka_broker: Kafka, tmp_path):
    topic = filled(kafka_broker)

    class Begins(Companion):
        def begin(self):
            return Beginning(Clock({f"{topic}-0": 19}), {}, "a test")

    topology = replace(keeping(spout_of(kafka_broker, topic)), companion=lambda topology: Begins())
    ended(topology, tmp_path / "data")
    assert sorted(int(value) for value, *_ in kept(tmp_path / "data")) == [*range(20, 100)]
    delete_up_to(kafka_broker.bootstrap, topic, 50)
    with pytest.raises(SpoutError, match=rf"{topic}/0: offsets 20 to 49 .*begins at 50"):
        ended(topology, tmp_path / "new")


def test_an_opaque_spout_skips_deleted_records_and_records_the_loss(kafka_broker: Kafka, tmp_path):
    topic, spout = read_twenty(kafka_broker, tmp_path / "data", OpaqueTransactionalKafkaSpout)
    delete_up_to(kafka_broker.bootstrap, topic, 50)
    ended(keeping(spout), tmp_path / "data")
    assert sorted(int(value) for value, *_ in kept(tmp_path / "data")) == [*range(20), *range(50, 100)]
    assert recorded_losses(tmp_path / "data") == [(3, topic, 0, 20, 50)]


def recorded_losses(data_dir):
    """Return the offset ranges that the history records as lost, as (txid, topic, partition, from, to)."""
    return [
        (txid, *(one[key] for key in ("topic", "partition", "from", "to")))
        for txid, meta in metadata(data_dir)
        for one in meta.get("lost", [])
    ]


class DeletesOnce(BatchBolt):
    """A bolt that, in its first attempt at txid 1, deletes planned records (of later txids, too) and fails."""

    fields = FIELDS

    def __init__(self, kafka: Kafka, topic: str, directory):
        self.bootstrap, self.topic, self.ticket = kafka.bootstrap, topic, directory / "deleted"

    def prepare(self, context, collector, attempt):
        self.collector, self.txid = collector, attempt.txid

    def execute(self, tuple):
        self.collector.emit(*(tuple[name] for name in FIELDS))

    def finish_batch(self):
        if self.txid == 1 and not self.ticket.exists():
            self.ticket.touch()
            delete_up_to(self.bootstrap, self.topic, 35)
            raise FailedException("deleted")


def deleting(kafka, topic, kind, directory):
    spout = spout_of(kafka, topic, kind, max_batch_rows=10)
    builder = TransactionalTopologyBuilder("kafka", "spout", spout, 1)
    builder.set_bolt("delete", DeletesOnce(kafka, topic, directory)).global_grouping("spout")
    builder.set_bolt("keep", DeltaSink("rows", COLUMNS)).global_grouping("delete")
    return builder.set_settings({"retry_backoff": 0.01, "compact_on_stop": False}).build_topology()


def test_deletion_of_a_planned_range_stops_a_transactional_spout(kafka_broker: Kafka, tmp_path):
    topic = filled(kafka_broker)
    # Offsets 0 to 34 are deleted before txid 1 is replayed; any of the first four txids may be the first to fail.
    ranges = "|".join(f"txid {n + 1}: {topic}/0, offsets {10 * n} to {10 * n + 9}" for n in range(4))
    with pytest.raises(SpoutError, match=rf"({ranges}) cannot be read"):
        ended(deleting(kafka_broker, topic, TransactionalKafkaSpout, tmp_path), tmp_path / "data")
    assert kept(tmp_path / "data") == Counter()


def test_deletion_of_a_planned_range_makes_an_opaque_spout_replan(kafka_broker: Kafka, tmp_path):
    topic = filled(kafka_broker)
    ended(deleting(kafka_broker, topic, OpaqueTransactionalKafkaSpout, tmp_path), tmp_path / "data")
    assert sorted(int(value) for value, *_ in kept(tmp_path / "data")) == list(range(35, 100))
    assert recorded_losses(tmp_path / "data") == [(1, topic, 0, 0, 35)]


def test_a_recreated_topic_stops_a_transactional_spout(kafka_broker: Kafka, tmp_path):
    topic, spout = read_twenty(kafka_broker, tmp_path / "data")
    recreate(kafka_broker, topic)
    kafka_broker.produce(topic, range(1000, 1200))
    with pytest.raises(SpoutError, match=f"{topic}/0: offset.* 20 .*recreated"):
        ended(keeping(spout), tmp_path / "data")


@pytest.mark.parametrize("restarted", [False, True])
def test_an_opaque_spout_reads_a_recreated_topic_from_its_start(kafka_broker: Kafka, tmp_path, restarted):
    """A recreated topic is read from its start, even if its leader epoch is lower, which old consumers reject."""
    topic = kafka_broker.make_topic()
    kafka_broker.produce(topic, range(50 if restarted else 100))
    spout = spout_of(kafka_broker, topic, OpaqueTransactionalKafkaSpout, max_batch_rows=10)
    handle = run(keeping(spout), engine="local", data_dir=tmp_path / "data")
    handle.processAllAvailable()
    if restarted:
        kafka_broker.restart()
        kafka_broker.produce(topic, range(50, 100))
        eventually(lambda: kept(tmp_path / "data").total() == 100, "the records after the restart")
    recreate(kafka_broker, topic)
    kafka_broker.produce(topic, range(1000, 1150))
    eventually(lambda: kept(tmp_path / "data").total() == 250, "the records of the new topic")
    handle.stop()
    assert Counter(int(row["value"]) for row in rows(tmp_path / "data")) == Counter([*range(100), *range(1000, 1150)])
    assert [(topic, 0, 100)] == [one[1:4] for one in recorded_losses(tmp_path / "data")]


def test_a_deleted_topic_is_reported(kafka_broker: Kafka, tmp_path):
    topic = kafka_broker.make_topic()
    kafka_broker.produce(topic, range(30))
    spout = spout_of(kafka_broker, f"^{topic}", max_batch_rows=10)
    ended(keeping(spout), tmp_path / "data", until_txid=2)
    delete(kafka_broker, topic)
    with pytest.raises(SpoutError, match=f"{topic}/0: not at .* any more"):
        ended(keeping(spout), tmp_path / "data")


def test_reading_starts_at_the_configured_position(kafka_broker: Kafka, tmp_path):
    topic = kafka_broker.make_topic(partitions=2)
    then = int(time.time()) - 3600
    for partition in (0, 1):
        kafka_broker.produce(topic, range(10), partition, times=[1000 * (then + number) for number in range(10)])

    def begun(name, start):
        ended(keeping(spout_of(kafka_broker, topic, start=start)), tmp_path / name)
        return Counter(partition for _, _, partition, _ in kept(tmp_path / name))

    assert begun("earliest", "earliest") == {0: 10, 1: 10}
    assert begun("latest", "latest") == {}
    assert begun("time", datetime.fromtimestamp(then + 6.5, UTC)) == {0: 3, 1: 3}
    assert begun("after", datetime.fromtimestamp(then + 7200, UTC)) == {}
    assert begun("old", datetime(1969, 12, 31, 23, 59, 59, 999_000, UTC)) == {0: 10, 1: 10}
    assert begun("offsets", {topic: {0: 4}}) == {0: 6, 1: 10}
    with pytest.raises(SpoutError, match=f"{topic}/0: .*ends at 10"):
        begun("beyond", {topic: {0: 11}})


SEEN: list[list] = []


class Look(BasicBolt):
    def execute(self, tuple, collector):
        SEEN.append(list(tuple.values))


def test_all_fields(kafka_broker: Kafka, tmp_path):
    topic, now = kafka_broker.make_topic(), int(time.time())
    producer = Producer({"bootstrap.servers": kafka_broker.bootstrap})
    headers = [("trace", b"\x00\xff"), ("empty", None)]
    producer.produce(topic, b'{"a": [1, 2]}', key="k", headers=headers, timestamp=1000 * now + 123)
    producer.produce(topic, None, key=None, timestamp=1000 * now + 124)
    producer.flush(10)

    for decoder in ("bytes", "json"):
        spout = TransactionalKafkaSpout(topic, kafka_broker.bootstrap, value=decoder)
        builder = TransactionalTopologyBuilder("kafka", "spout", spout)
        builder.set_bolt("look", Look()).global_grouping("spout")
        ended(builder.build_topology(), tmp_path / decoder)
    times = [*(datetime.fromtimestamp(now, UTC) + timedelta(milliseconds=millis) for millis in (123, 124))]
    shown = [{"key": "trace", "value": b"\x00\xff"}, {"key": "empty", "value": None}]
    first = [["k", value, topic, 0, 0, times[0], shown] for value in (b'{"a": [1, 2]}', {"a": [1, 2]})]
    second = [None, None, topic, 0, 1, times[1], []]
    assert SEEN == [first[0], second, first[1], second]


def test_max_batch_bytes_applies_to_each_topic(kafka_broker: Kafka, tmp_path):
    large, small = kafka_broker.make_topic(), kafka_broker.make_topic()
    kafka_broker.produce(large, ["x" * 10_000] * 400)
    kafka_broker.produce(small, range(400))
    spout = spout_of(kafka_broker, [large, small], max_batch_rows=300, max_batch_bytes=500_000)
    ended(keeping(spout), tmp_path / "data")
    first = Counter(row["topic"] for row in rows(tmp_path / "data") if row["_txid"] == 1)
    assert first[small] == 300
    assert 40 <= first[large] <= 50
    assert kept(tmp_path / "data") == content(kafka_broker, large, small)


def test_one_topic_does_not_starve_another(kafka_broker: Kafka, tmp_path):
    busy, quiet = kafka_broker.make_topic(partitions=2), kafka_broker.make_topic()
    for partition in (0, 1):
        kafka_broker.produce(busy, range(1000), partition)
    kafka_broker.produce(quiet, range(20))
    ended(keeping(spout_of(kafka_broker, [busy, quiet], max_batch_rows=100)), tmp_path / "data")
    first = Counter((row["topic"], row["partition"]) for row in rows(tmp_path / "data") if row["_txid"] == 1)
    assert first == {(busy, 0): 50, (busy, 1): 50, (quiet, 0): 20}


def test_an_undecodable_record_is_reported(kafka_broker: Kafka, tmp_path):
    topic = kafka_broker.make_topic()
    kafka_broker.produce(topic, [b"good", b"\xff\xfe", b"good too"])
    with pytest.raises(SpoutError, match=rf"txid 1: {topic}/0, offset 1: its value cannot be decoded: Unicode"):
        ended(keeping(spout_of(kafka_broker, topic)), tmp_path / "data")


def test_only_the_undecodable_record_becomes_a_dead_letter(kafka_broker: Kafka, make_engine, tmp_path):
    topic = kafka_broker.make_topic()
    kafka_broker.produce(topic, ['"good"', "{bad", '"good too"'])
    spout = spout_of(kafka_broker, topic, value="json")
    handle = ended(keeping(spout, on_error="dead_letter"), tmp_path / "data", make_engine())
    assert [row["value"] for row in rows(tmp_path / "data")] == ["good", "good too"]
    [letter] = handle.dead_letters().to_pylist()
    assert letter["what"] == "record"
    record = json.loads(letter["record"])
    assert (record["topic"], record["partition"], record["offset"], record["value"]) == (topic, 0, 1, "e2JhZA==")
    assert "offset 1" in letter["message"]


@pytest.mark.parametrize("spout", [TransactionalKafkaSpout, OpaqueTransactionalKafkaSpout])
def test_a_record_whose_time_python_does_not_have_is_left_out_alone(kafka_broker: Kafka, spout, tmp_path):
    """Times in micro- or nanoseconds in place of milliseconds."""
    topic, now = kafka_broker.make_topic(message_timestamp_after_max_ms=str((1 << 63) - 1)), int(time.time() * 1000)
    kafka_broker.produce(topic, ["good", "micros", "nanos", "good too"], times=[now, now * 1000, now * 1_000_000, now])
    topology = keeping(spout_of(kafka_broker, topic, spout, fields=(*FIELDS, "timestamp")), on_error="dead_letter")
    handle = ended(topology, tmp_path / "data")
    kafka_broker.produce(topic, ["later"], times=[now])
    handle = ended(topology, tmp_path / "data")
    assert [row["value"] for row in rows(tmp_path / "data")] == ["good", "good too", "later"]
    letters = handle.dead_letters().to_pylist()
    assert [json.loads(one["record"])["offset"] for one in letters] == [1, 2]
    assert f"offset 1: its timestamp, {now * 1000} ms, is a time out of the years 1 to 9999" in letters[0]["message"]
    with pytest.raises(SpoutError, match=rf"{topic}/0, offset 1: its timestamp"):
        ended(keeping(spout_of(kafka_broker, topic, spout, fields=(*FIELDS, "timestamp"))), tmp_path / "more")


def test_positions_are_committed_to_a_consumer_group_and_never_read(kafka_broker: Kafka, tmp_path):
    topic = kafka_broker.make_topic(partitions=2)
    kafka_broker.produce(topic, range(50), 0)
    kafka_broker.produce(topic, range(30), 1)
    group = f"lag-{topic}"
    consumer = Consumer({"bootstrap.servers": kafka_broker.bootstrap, "group.id": group})
    places = [TopicPartition(topic, 0, 7), TopicPartition(topic, 1, 7)]
    consumer.commit(offsets=places, asynchronous=False)
    ended(keeping(spout_of(kafka_broker, topic, consumer_group=group)), tmp_path / "data")
    assert [one.offset for one in consumer.committed(places, timeout=10)] == [50, 30]
    consumer.close()
    assert kept(tmp_path / "data").total() == 80


def test_errors_for_wrong_addresses_passwords_and_certificates_are_clear(kafka_broker: Kafka, tmp_path):
    topic = kafka_broker.make_topic()
    secure = dict(kafka_broker.secure)
    servers = secure.pop("bootstrap.servers")
    kafka_broker.produce(topic, ["seen"])

    def tried(servers, settings, name="data"):
        spout = TransactionalKafkaSpout(topic, servers, fields=FIELDS, settings=settings)
        ended(keeping(spout), tmp_path / name)

    tried(servers, secure)
    assert kept(tmp_path / "data").total() == 1
    with pytest.raises(SpoutError, match=r"[Aa]uthentication failed"):
        tried(servers, {**secure, "sasl.password": "wrong"}, "password")
    with pytest.raises(SpoutError, match="certificate"):
        tried(servers, {**secure, "ssl.ca.location": "probe"}, "ca")
    with pytest.raises(SpoutError, match=r"127\.0\.0\.1:1: .*refused"):
        tried("127.0.0.1:1", {}, "address")
    with pytest.raises(SpoutError, match="has no topic nowhere-to-be-found"):
        ended(keeping(spout_of(kafka_broker, "nowhere-to-be-found")), tmp_path / "topic")
    assert not (tmp_path / "address").exists()
