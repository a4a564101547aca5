"""The Kafka sink on a real broker: fencing, lost responses, unavailable brokers, wrong settings."""

import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Producer
from recovery_cases import eventually, start
from runs import ended
from scenarios import fencing
from servers.kafka import is_transaction_end
from servers.kafka_reading import committed_records
from servers.process import free_ports

from txstorm import TransactionalTopologyBuilder, faults
from txstorm.api.external import Mark
from txstorm.api.state import SinkTable
from txstorm.clients.kafka.producer import KafkaWriter
from txstorm.errors import AwayError, BlockedError, FencedError, InputError
from txstorm.runtime.commit.publication import Publisher
from txstorm.sinks.kafka import COLUMNS, KafkaSink
from txstorm.spouts import MemoryTransactionalSpout
from txstorm.storage.rows.schema import sink_schema
from txstorm.storage.tables.intent import Intent, decode

pytestmark = pytest.mark.integration

PATIENCE = 10
"""Seconds in which everything that a cluster refuses is named (docs/fault-matrix.md, 38)."""
NO_ROWS = sink_schema(SinkTable("out", COLUMNS)).empty_table()


def topology(brokers: str, topic: str, batches: int = 6, **options):
    rows = [(n, f"word-{n % 7}") for n in range(3 * batches)]
    builder = TransactionalTopologyBuilder("sending", "source", MemoryTransactionalSpout([rows], ["n", "word"], take=3))
    builder.set_bolt("send", KafkaSink("out", topic, brokers, **options)).global_grouping("source")
    builder.set_settings({"max_group_txids": 2, "max_spout_pending": 8})
    return builder.build_topology()


def check_sent(bootstrap: str, topic: str, batches: int = 6) -> None:
    records = committed_records(bootstrap, topic)
    assert [(record.txid, record.index) for record in sorted(records, key=lambda one: (one.txid, one.index))] == [
        (txid, index) for txid in range(1, batches + 1) for index in range(3)
    ]
    assert all(record.value["n"] == 3 * record.txid - 3 + record.index for record in records)
    for number in {record.partition for record in records}:
        txids = [record.txid for record in records if record.partition == number]
        assert txids == sorted(txids)


def intent_of(place: Path, txid: int) -> Intent:
    return decode((place / f"intent-{txid}").read_bytes())


def test_a_coordinator_that_was_stopped_writes_nothing_when_it_wakes_up(kafka_broker, tmp_path):
    topic = kafka_broker.make_topic(partitions=2)
    first = start("kafka-outlet", tmp_path, kafka_broker.bootstrap, topic)
    try:
        eventually(lambda: first.poll() is not None or (tmp_path / "ready-2").exists())  # it has written txid 1
        assert first.poll() is None, first.printed
        first.send_signal(signal.SIGSTOP)
        (tmp_path / "go-2").touch()
        second = fencing.store(tmp_path, kafka_broker.bootstrap, topic)
        second.lead(2, 1, {"outlets/out": 1}, [intent_of(tmp_path, 2)])
        second.roll_forward(intent_of(tmp_path, 2), 2)
        first.send_signal(signal.SIGCONT)
        output, _ = first.communicate(timeout=60)
    finally:
        first.kill()
    assert "FencedError: outlet 'out': a coordinator with epoch 2 has taken over from this one with epoch 1" in output
    # Its look at the mark has fenced this one's producer; that is no reason to give up.
    second.roll_forward(intent_of(tmp_path, 3), 2)
    second.close()
    places = [(record.txid, record.index) for record in committed_records(kafka_broker.bootstrap, topic)]
    assert sorted(places) == [(txid, index) for txid in fencing.TXIDS for index in range(fencing.ROWS)]


def test_what_a_coordinator_had_sent_and_not_committed_is_never_seen(kafka_broker, tmp_path, monkeypatch):
    topic = kafka_broker.make_topic()
    first, second = (fencing.store(tmp_path, kafka_broker.bootstrap, topic) for _ in range(2))
    first.lead(1, 0, {}, [])
    intent = fencing.decided(first, 1)
    waiting, taken = threading.Event(), threading.Event()
    point = faults.point

    def held(name: str) -> None:
        point(name)
        if name == "kafka.sent" and threading.current_thread().name.startswith("late"):
            waiting.set()
            assert taken.wait(60)

    monkeypatch.setattr(faults, "point", held)
    with ThreadPoolExecutor(1, "late") as threads:
        late = threads.submit(first.roll_forward, intent, 1)
        assert waiting.wait(60)
        second.lead(2, 0, {"outlets/out": 0}, [intent])
        assert committed_records(kafka_broker.bootstrap, topic) == []
        second.roll_forward(intent, 2)
        taken.set()
        with pytest.raises(FencedError):
            late.result(60)
    second.close()
    assert [record.index for record in committed_records(kafka_broker.bootstrap, topic)] == list(range(fencing.ROWS))


def test_an_open_transaction_of_another_producer_before_the_mark_is_named(kafka_broker, tmp_path):
    topic, marks = kafka_broker.make_topic(), kafka_broker.make_topic(cleanup_policy="compact")
    settings = {"bootstrap.servers": kafka_broker.bootstrap, "transactional.id": f"other-{topic}", "log_level": 0}
    other = Producer(settings)
    other.init_transactions(30)
    other.begin_transaction()
    other.produce(marks, b"never committed", key=b"other")
    other.flush(30)
    built = topology(kafka_broker.bootstrap, topic, progress_topic=marks, timeout=5.0)
    try:
        hanging = rf"no records received from {marks}/0 from offset 0 of 0\.\.0\. .*find-hanging"
        with pytest.raises(BlockedError, match=hanging):
            ended(built, tmp_path / "data")
    finally:
        other.abort_transaction(30)
    ended(built, tmp_path / "data")
    check_sent(kafka_broker.bootstrap, topic)


@pytest.mark.parametrize(
    ("point", "nth"),
    [("kafka.begun", 2), ("kafka.sent", 1), ("kafka.sent", 4), ("kafka.committed", 1), ("kafka.committed", 2)],
)
def test_a_step_that_fails_is_retried_and_done_once(kafka_broker, tmp_path, point, nth):
    topic = kafka_broker.make_topic(partitions=2)
    faults.arm(f"{point}:raise:{nth}")
    if nth == 1:  # that is in P0
        with pytest.raises(BlockedError, match="outlet 'out': cannot take it over"):
            ended(topology(kafka_broker.bootstrap, topic), tmp_path / "data")
    ended(topology(kafka_broker.bootstrap, topic), tmp_path / "data")
    check_sent(kafka_broker.bootstrap, topic)


def test_an_answer_to_a_commit_is_lost(kafka_broker, tmp_path):
    topic, proxy = kafka_broker.make_topic(partitions=2), kafka_broker.proxy()
    ended(topology(proxy.address, topic, timeout=3), tmp_path / "data", until_txid=2)
    before = proxy.dropped
    proxy.drop_answers(2, is_transaction_end)
    try:
        ended(topology(proxy.address, topic, timeout=3), tmp_path / "data")
    finally:
        proxy.heal()
    assert proxy.dropped == before + 2
    check_sent(kafka_broker.bootstrap, topic)


@pytest.mark.parametrize("where", ["kafka.sent", pytest.param("kafka.committed", marks=pytest.mark.long)])
def test_the_broker_is_killed_in_the_middle_of_a_transaction(kafka_broker, tmp_path, monkeypatch, where):
    topic, passed, point = kafka_broker.make_topic(partitions=2), [], faults.point

    def killing(name: str) -> None:
        point(name)
        passed.append(name)
        if name == where and passed.count(name) == 2:  # the first one raises the epoch
            kafka_broker.kill()
            threading.Timer(0.5, kafka_broker.restart).start()

    monkeypatch.setattr(faults, "point", killing)
    ended(topology(kafka_broker.bootstrap, topic), tmp_path / "data")
    assert passed.count(where) >= 2
    check_sent(kafka_broker.bootstrap, topic)


def test_the_mark_is_found_behind_many_others(kafka_broker):
    topic, marks = kafka_broker.make_topic(), kafka_broker.make_topic(cleanup_policy="compact")
    one, other = (KafkaWriter(topic, kafka_broker.bootstrap, progress_topic=marks) for _ in range(2))
    one.open("one", "t", "a")
    other.open("other", "t", "a")
    assert one.published() is None
    mark = Mark("t", "a", 1, 0, 5, "digest")
    assert one.publish(NO_ROWS, None, mark)
    found = other.published()
    assert found is None
    for txid in range(1, 60):
        later = Mark("t", "a", 1, 0, txid)
        assert other.publish(NO_ROWS, found, later)
        found = later
    one.close()
    assert one.published() == mark
    assert not one.publish(NO_ROWS, None, replace(mark, txid=6))
    assert one.published() == mark
    one.close()
    other.close()


def test_compacted_marks_are_enough(kafka_broker, tmp_path):
    topic = kafka_broker.make_topic()
    marks = kafka_broker.make_topic(
        cleanup_policy="compact", segment_ms="100", min_cleanable_dirty_ratio="0.001", delete_retention_ms="10"
    )
    for txid in (2, 4):
        ended(topology(kafka_broker.bootstrap, topic, progress_topic=marks), tmp_path / "data", until_txid=txid)
    time.sleep(1)
    ended(topology(kafka_broker.bootstrap, topic, progress_topic=marks), tmp_path / "data")
    check_sent(kafka_broker.bootstrap, topic)


def test_brokers_that_stay_away_end_a_start_that_has_waited_for_them(kafka_broker, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(Publisher, "TRIES", 2)
    topic, proxy = kafka_broker.make_topic(partitions=2), kafka_broker.proxy()
    ended(topology(proxy.address, topic), tmp_path / "data", until_txid=2)
    proxy.cut()
    try:
        with pytest.raises(BlockedError, match=r"the brokers cannot be asked: .* It answered in earlier runs"):
            ended(topology(proxy.address, topic, timeout=0.5), tmp_path / "data")
    finally:
        proxy.heal()
    assert "cannot lead yet, retrying for a while: topic" in caplog.text
    ended(topology(proxy.address, topic), tmp_path / "data")
    check_sent(kafka_broker.bootstrap, topic)


def test_a_topic_that_is_not_there(kafka_broker, tmp_path):
    with pytest.raises(InputError, match=r"topic 'nowhere': .* has none; create it first"):
        ended(topology(kafka_broker.bootstrap, "nowhere"), tmp_path / "data")
    assert "nowhere" not in kafka_broker.admin().list_topics(timeout=5).topics


def test_a_topic_for_smaller_records(kafka_broker, tmp_path):
    topic = kafka_broker.make_topic(max_message_bytes="2000")
    small = r"its max\.message.bytes is 2000, expected 1000256 .* set max_message_bytes=1744"
    with pytest.raises(InputError, match=small):
        ended(topology(kafka_broker.bootstrap, topic), tmp_path / "data")
    ended(topology(kafka_broker.bootstrap, topic, max_message_bytes=1744), tmp_path / "data")
    check_sent(kafka_broker.bootstrap, topic)


def test_the_largest_record_goes_through(kafka_broker, tmp_path):
    topic = kafka_broker.make_topic(max_message_bytes="2000")
    spout = MemoryTransactionalSpout([[("x" * 1744,), ("y" * 1744,)]], ["word"])
    builder = TransactionalTopologyBuilder("t" * 64, "source", spout)
    options = {"value": lambda row: f'"{row["word"][2:]}"', "max_message_bytes": 1744}
    sink = KafkaSink("o" * 64, topic, kafka_broker.bootstrap, **options)
    builder.set_bolt("send", sink).global_grouping("source")
    ended(builder.build_topology(), tmp_path / "data")
    assert [len(record.value) for record in committed_records(kafka_broker.bootstrap, topic)] == [1742, 1742]


def test_marks_that_would_be_deleted(kafka_broker, tmp_path):
    topic, marks = kafka_broker.make_topic(), kafka_broker.make_topic(cleanup_policy="delete")
    with pytest.raises(InputError, match=r"its cleanup\.policy is 'delete', expected 'compact'"):
        ended(topology(kafka_broker.bootstrap, topic, progress_topic=marks), tmp_path / "data")


def test_a_host_that_is_not_there_is_named_within_ten_seconds(tmp_path):
    (port,) = free_ports(1)
    began = time.monotonic()
    with pytest.raises(AwayError, match=f"the brokers cannot be asked: .*127.0.0.1:{port}.*Connection refused"):
        ended(topology(f"127.0.0.1:{port}", "words", timeout=2), tmp_path / "data")
    assert time.monotonic() - began < PATIENCE


def secured(kafka_broker, **changed: str) -> tuple[str, dict[str, str]]:
    """Return the broker's address and the client settings for TLS with a password."""
    settings = {name: value for name, value in {**kafka_broker.secure, **changed}.items() if value}
    return settings.pop("bootstrap.servers"), settings


WRONG = [({"sasl.password": "wrong"}, "[Aa]uthentication"), ({"ssl.ca.location": ""}, "certificate verify failed")]


@pytest.mark.parametrize(("changed", "reason"), WRONG)
def test_what_a_secured_cluster_refuses_is_told_within_ten_seconds(kafka_broker, tmp_path, changed, reason):
    topic = kafka_broker.make_topic()
    brokers, settings = secured(kafka_broker, **changed)
    began = time.monotonic()
    with pytest.raises(InputError, match=f"the brokers cannot be asked: .*{reason}") as refused:
        ended(topology(brokers, topic, settings=settings, timeout=4), tmp_path / "data")
    assert time.monotonic() - began < PATIENCE
    assert "wrong" not in str(refused.value)


def test_a_password_that_has_become_wrong_is_not_waited_for(kafka_broker, tmp_path, caplog):
    topic = kafka_broker.make_topic()
    brokers, settings = secured(kafka_broker)
    ended(topology(brokers, topic, settings=settings), tmp_path / "data", until_txid=2)
    with pytest.raises(InputError, match=r"the brokers cannot be asked: .*[Aa]uthentication") as refused:
        ended(topology(brokers, topic, settings={**settings, "sasl.password": "wrong"}), tmp_path / "data")
    assert not isinstance(refused.value, AwayError)
    assert "tried again" not in caplog.text


def test_a_secured_cluster(kafka_broker, tmp_path):
    topic = kafka_broker.make_topic()
    brokers, settings = secured(kafka_broker)
    ended(topology(brokers, topic, settings=lambda: settings), tmp_path / "data")
    check_sent(kafka_broker.bootstrap, topic)
    written = [path for path in (tmp_path / "data").rglob("*") if path.is_file()]
    assert [path for path in written if kafka_broker.secure["sasl.password"].encode() in path.read_bytes()] == []


def test_keys_decide_the_partition_and_records_have_the_time_of_their_transaction(kafka_broker, tmp_path):
    topic = kafka_broker.make_topic(partitions=3)
    ended(topology(kafka_broker.bootstrap, topic, key="word"), tmp_path / "data")
    check_sent(kafka_broker.bootstrap, topic)
    records = committed_records(kafka_broker.bootstrap, topic)
    assert len({(record.key, record.partition) for record in records}) == len({record.key for record in records}) == 7
    assert len({record.timestamp for record in records if record.txid == 1}) == 1
