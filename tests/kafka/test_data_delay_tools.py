"""``txstorm data-delay collect`` and ``serve`` with a real broker and a real server, and the client of joins."""

import http.server
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from commands import Commands, serving
from confluent_kafka import Consumer, Producer, TopicPartition
from fed import fed_bolt
from join_store_servers import asked
from kafka_cases import COLUMNS, QUICK, keeping, recreate
from programs import loaded
from runs import ended
from servers.running import Kafka

from txstorm import CompositeSpout, Duration, TransactionalTopologyBuilder
from txstorm.errors import AwayError, InputError
from txstorm.joins import DataDelay, DataDelaySync, Side
from txstorm.operations.delay_collector import DelayCollector, RecordTimes, directory_positions, group_positions
from txstorm.sinks import DeltaSink
from txstorm.spouts import MemoryTransactionalSpout, TransactionalKafkaSpout
from txstorm.testing import TopologyTestDriver
from txstorm.topology.graph import Topology

pytestmark = pytest.mark.integration
START = int(time.time()) * 1000 - 3_600_000
"""Near the present: the broker deletes records that are older than its retention."""
Collecting = Callable[..., DelayCollector]
FIELDS = ("value", "topic", "partition", "offset")


SERVE = ("data-delay", "serve", "--port", "0")


@pytest.fixture
def api() -> Iterator[str]:
    with serving(*SERVE) as (listening, _):
        yield listening["url"]


def reported(**changed: Any) -> dict[str, Any]:
    """Return a report of one partition, ten seconds behind."""
    part = {"consumed": 4, "end": 9, "time": START - 10_000, "caught_up": False}
    whole = {"reported_at": START, "consumed_time": START - 10_000, "delay": 10_000, "partitions": {"clicks/0": part}}
    return {**whole, **changed}


def keeping_of(spout: CompositeSpout) -> Topology:
    """Build a topology that writes the tuples of all sources to one sink."""
    builder = TransactionalTopologyBuilder("kafka", "spout", spout)
    sink = builder.set_bolt("keep", DeltaSink("rows", COLUMNS))
    for name in spout.sources:
        sink.global_grouping("spout", name)
    return builder.set_settings(QUICK).build_topology()


def commit(kafka: Kafka, group: str, positions: dict[tuple[str, int], int]) -> None:
    settings = {"bootstrap.servers": kafka.bootstrap, "group.id": group, "enable.auto.commit": False}
    consumer = Consumer(settings)
    consumer.commit(offsets=[TopicPartition(*one, offset) for one, offset in positions.items()], asynchronous=False)
    consumer.close()


@pytest.fixture
def collecting() -> Iterator[Collecting]:
    """Yield a function that returns a collector for a consumer group, or for positions read by a function."""
    with ExitStack() as stack:

        def collector(kafka: Kafka, positions: Any, **options: Any) -> DelayCollector:
            settings = {"bootstrap.servers": kafka.bootstrap}
            read = group_positions(settings, positions) if isinstance(positions, str) else positions
            made = DelayCollector(settings, read, **{"clock": lambda: START / 1000, **options})
            stack.callback(made.close)
            return made

        yield collector


def put(kafka: Kafka, topic: str, times: list[int], partition: int = 0) -> None:
    kafka.produce(topic, times, partition, times=times)


def test_delay_of_a_consumer_group(kafka_broker: Kafka, collecting: Collecting):
    """A15: committed offset → record there → its time, minimum of the partitions; the next report follows it."""
    topic, group = kafka_broker.make_topic(partitions=3), "g-delay"
    put(kafka_broker, topic, [START - 900, START - 800, START - 850, START - 100])
    put(kafka_broker, topic, [START - 700, START - 600, START - 500], partition=1)
    commit(kafka_broker, group, {(topic, 0): 3, (topic, 1): 2})
    collector = collecting(kafka_broker, group, topics=[topic])
    first = collector.report()
    assert first.times == {f"{topic}/0": START - 800, f"{topic}/1": START - 600}  # the running maximum
    assert (first.consumed_time, first.delay, first.slowest) == (START - 800, 800, f"{topic}/0")
    assert first.caught_up == [f"{topic}/2"]  # it is empty
    commit(kafka_broker, group, {(topic, 0): 4})
    second = collector.report()
    assert (second.caught_up, second.consumed_time) == ([f"{topic}/0", f"{topic}/2"], START - 600)
    commit(kafka_broker, group, {(topic, 1): 3})
    assert collector.report().delay == 0


def test_partition_of_which_nothing_is_consumed_leaves_the_time_unknown(kafka_broker: Kafka, collecting: Collecting):
    topic, group = kafka_broker.make_topic(partitions=2), "g-partial"
    put(kafka_broker, topic, [START - 900])
    put(kafka_broker, topic, [START - 900], partition=1)
    commit(kafka_broker, group, {(topic, 0): 1})
    collector = collecting(kafka_broker, group, topics=[topic])
    assert (collector.report().consumed_time, collector.report().slowest) == (None, f"{topic}/1")


def test_markers_of_producer_transactions_are_no_unread_records(kafka_broker: Kafka, collecting: Collecting):
    """A15, A17: a group's position stays before a marker, yet it is at the end; an open transaction is not."""
    topic, group = kafka_broker.make_topic(), "g-markers"
    producer = Producer({"bootstrap.servers": kafka_broker.bootstrap, "transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, "a", timestamp=START - 500)
    producer.commit_transaction(30)
    commit(kafka_broker, group, {(topic, 0): 1})  # after the record, before the marker
    collector = collecting(kafka_broker, group, topics=[topic])
    report = collector.report()
    assert (report.times, report.delay) == ({f"{topic}/0": START - 500}, 0)
    producer.begin_transaction()
    producer.produce(topic, "b", timestamp=START - 100)
    producer.flush(30)
    assert collector.report().consumed_time == START  # the moment of the report before
    fresh = collecting(kafka_broker, group, topics=[topic])
    assert (fresh.report().caught_up, fresh.report().consumed_time) == ([], START - 500)
    producer.abort_transaction(30)
    kafka_broker.wait(lambda: fresh.report().delay == 0, "the aborted record to count as none", 30)
    commit(kafka_broker, group, {(topic, 0): 4})  # the last offsets are an aborted record and two markers
    assert fresh.report().times == {f"{topic}/0": START - 500}


def test_times_in_a_field(kafka_broker: Kafka, collecting: Collecting, caplog: pytest.LogCaptureFixture):
    """The time is unknown if a record does not have the field."""
    topic, other, group = kafka_broker.make_topic(), kafka_broker.make_topic(), "g-field"
    times = [START + 1, START + 2, START + 3]
    kafka_broker.produce(topic, [json.dumps({"at": START // 1000 - 9 + n}) for n in range(3)], times=times)
    put(kafka_broker, other, [START, START])
    commit(kafka_broker, group, {(topic, 0): 2, (other, 0): 1})
    assert collecting(kafka_broker, group, topics=[topic], times=RecordTimes("at", "s")).report().consumed_time == (
        START - 8000
    )
    assert collecting(kafka_broker, group, topics=[other], times=RecordTimes("at")).report().consumed_time is None
    assert f"{other}/0, offset 0: its time is not in the field 'at'" in caplog.text


def test_delay_of_a_data_directory(kafka_broker: Kafka, collecting: Collecting, tmp_path: Path):
    """A15: the positions of the last committed transaction; consumed means committed."""
    topic = kafka_broker.make_topic(partitions=2)
    put(kafka_broker, topic, [START - 900, START - 800, START - 700])
    put(kafka_broker, topic, [START - 600, START - 500, START - 400], partition=1)
    data_dir = tmp_path / "data"
    spout = TransactionalKafkaSpout(topic, kafka_broker.bootstrap, max_batch_rows=2, fields=list(FIELDS))
    ended(keeping(spout), data_dir, until_txid=2)
    collector = collecting(kafka_broker, lambda: directory_positions(data_dir))
    report = collector.report()
    assert report.times == {f"{topic}/0": START - 800, f"{topic}/1": START - 500}
    assert report.consumed_time == START - 800
    ended(keeping(spout), data_dir)
    assert collector.report().delay == 0


def test_source_of_a_composite_spout(kafka_broker: Kafka, collecting: Collecting, tmp_path: Path):
    left, right = kafka_broker.make_topic(), kafka_broker.make_topic()
    put(kafka_broker, left, [START - 900, START - 800])
    put(kafka_broker, right, [START - 300])
    spout = CompositeSpout(
        {
            "left": TransactionalKafkaSpout(left, kafka_broker.bootstrap, max_batch_rows=1, fields=list(FIELDS)),
            "right": TransactionalKafkaSpout(right, kafka_broker.bootstrap, fields=list(FIELDS)),
            "other": MemoryTransactionalSpout([[("a", "b", 1, 1)]], FIELDS),
        }
    )
    data_dir = tmp_path / "data"
    ended(keeping_of(spout), data_dir, until_txid=1)
    assert set(directory_positions(data_dir).next) == {(left, 0), (right, 0)}
    assert directory_positions(data_dir, "right").next == {(right, 0): 1}
    with pytest.raises(InputError, match=r"no source 'rigt' in txid 1 \(did you mean 'right'\?\)"):
        directory_positions(data_dir, "rigt")
    with pytest.raises(InputError, match="expected positions in Kafka, found none"):
        directory_positions(data_dir, "other")
    collector = collecting(kafka_broker, lambda: directory_positions(data_dir, "right"), topics=[left])
    with pytest.raises(InputError, match=f"does not read topic '{left}'.*; it reads {right}"):
        collector.report()


def test_recreated_topic_has_nothing_consumed(kafka_broker: Kafka, collecting: Collecting, tmp_path: Path):
    topic = kafka_broker.make_topic()
    put(kafka_broker, topic, [START - 900])
    data_dir = tmp_path / "data"
    spout = TransactionalKafkaSpout(topic, kafka_broker.bootstrap, fields=list(FIELDS))
    ended(keeping(spout), data_dir, until_txid=1)
    collector = collecting(kafka_broker, lambda: directory_positions(data_dir))
    assert collector.report().delay == 0
    recreate(kafka_broker, topic)
    put(kafka_broker, topic, [START - 100])
    kafka_broker.wait(lambda: collector.report().consumed_time is None, "the new topic to be unknown", 30)


def test_unknown_topic_and_missing_brokers(kafka_broker: Kafka, collecting: Collecting):
    with pytest.raises(InputError, match="no topic 'no-such-topic'"):
        collecting(kafka_broker, "g-none", topics=["no-such-topic"]).report()
    settings = {"bootstrap.servers": "127.0.0.1:1"}
    away = DelayCollector(settings, group_positions(settings, "g"), topics=["t"])
    with pytest.raises(AwayError, match=r"127\.0\.0\.1:1"):
        away.report()
    away.close()


def test_api_returns_the_last_report(api: str):
    """A15: consumed time, delay, partitions, report time; 404 for an unknown name."""
    assert asked(f"{api}/delay/clicks")[0] == 404
    assert asked(f"{api}/delay/clicks", reported()) == (200, {"stored": True})
    status, delay = asked(f"{api}/delay/clicks")
    assert status == 200
    assert (delay.pop("name"), delay.pop("stale"), delay.pop("age") < 60_000) == ("clicks", False, True)
    assert delay == reported()
    assert asked(f"{api}/delay") == (200, {"names": ["clicks"]})
    assert asked(f"{api}/health")[0] == 200
    assert "/delay/{name}" in asked(f"{api}/openapi.json")[1]["paths"]
    asked(f"{api}/delay/clicks", reported(reported_at=START + 1000, consumed_time=START))
    assert asked(f"{api}/delay/clicks", reported()) == (200, {"stored": False})  # repeated late
    assert asked(f"{api}/delay/clicks")[1]["consumed_time"] == START


BAD_REPORTS = {
    "body": b"{",
    "consumed_time": reported(consumed_time="now"),
    "reported_at": reported(reported_at=-1),
    "partitions": reported(partitions={}),
    "partitions.p": reported(partitions={"p": {"consumed": 1}}),
    "more": reported(more=1),
}


def test_bad_reports_are_refused(api: str):
    for what, body in BAD_REPORTS.items():
        status, answer = asked(f"{api}/delay/clicks", body)
        assert (status, answer["detail"].startswith(what)) == (422, True), (what, answer)
    assert asked(f"{api}/delay/clicks", b" " * (1 << 21))[0] == 413
    assert asked(f"{api}/delay/clicks")[0] == 404
    assert asked(f"{api}/delay/a%20b", reported())[0] == 400


def test_token_is_required():
    with serving(*SERVE, "--token", "secret", "--stale-after", "0.1") as (listening, process):
        url = listening["url"]
        assert asked(f"{url}/delay/clicks", reported())[0] == 401
        assert asked(f"{url}/delay/clicks", reported(), Authorization="Bearer wrong")[0] == 401
        assert asked(f"{url}/delay/clicks", reported(), Authorization="Bearer secret")[0] == 200
        with pytest.raises(InputError, match="rejects the token"):
            DataDelay(url, "clicks", token="wrong")()
        assert DataDelay(url, "clicks", token="secret")() == START - 10_000
        time.sleep(0.2)
        assert asked(f"{url}/delay/clicks", Authorization="Bearer secret")[1]["stale"] is True
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def test_client_is_the_report_of_a_join(api: str):
    """A16: the consumed time in the unit of the left side's times; None while nothing is reported."""
    delay = DataDelay(api, "clicks", unit="s")
    assert delay() is None
    asked(f"{api}/delay/clicks", reported())
    assert delay() == START // 1000 - 10
    assert DataDelay(api, "clicks", unit="us")() == (START - 10_000) * 1000
    assert DataDelay(api, "clicks", unit="datetime")().timestamp() * 1000 == START - 10_000
    asked(f"{api}/delay/clicks", reported(reported_at=START + 1, consumed_time=None, delay=None))
    assert delay() is None


def test_left_rows_wait_for_the_reported_time(api: str, caplog: pytest.LogCaptureFixture):
    """A16: rows before the reported time pass, in order; an API that is away or goes back loses and passes nothing."""
    sync = DataDelaySync(Side("feed", "l", key="key", time="ts"), report=DataDelay(api, "clicks"), refresh=Duration(0))
    with TopologyTestDriver(fed_bolt("sync", sync, {"l": ("key", "ts")}, ["key"]).build_topology()) as driver:
        rows = [("a", START), ("b", START - 10_001), ("c", START - 10_000)]
        driver.feed({"l": rows})
        driver.commit()
        assert driver.emitted("sync", 1) == []  # nothing is reported yet
        for txid, (consumed, passed) in enumerate([(START - 10_000, [rows[1]]), (START - 20_000, []), (None, [])], 2):
            asked(f"{api}/delay/clicks", reported(reported_at=START + txid, consumed_time=consumed))
            driver.heartbeat()
            driver.commit()
            assert driver.emitted("sync", txid) == passed
        assert caplog.text.count("sync: its report went back from") == 1
        part = {"consumed": 8, "end": 9, "time": START - 10_000, "caught_up": True}
        caught_up = reported(reported_at=START + 9, consumed_time=START + 9, delay=0, partitions={"clicks/0": part})
        asked(f"{api}/delay/clicks", caught_up)  # a paused stream: its last record is old, but it is consumed
        driver.heartbeat()
        driver.commit()
        assert driver.emitted("sync", 5) == [rows[2], rows[0]]


def test_api_that_goes_away_is_an_error_until_it_is_back():
    with serving(*SERVE) as (listening, _):
        url = listening["url"]
        asked(f"{url}/delay/clicks", reported())
        delay = DataDelay(url, "clicks")
        assert delay() == START - 10_000
    with pytest.raises(OSError, match="data delay at http"):
        delay()
    with serving(*SERVE, "--port", url.rpartition(":")[2]) as (again, _):
        asked(f"{again['url']}/delay/clicks", reported())
        assert delay() == START - 10_000


GARBAGE = {
    "no JSON": b"<html>",
    "no object": b"[1]",
    "missing": b'{"name": "clicks"}',
    "text": b'{"name": "clicks", "consumed_time": "1", "stale": false, "age": 1}',
    "future": b'{"name": "clicks", "consumed_time": 1e18, "stale": false, "age": 1}',
    "negative": b'{"name": "clicks", "consumed_time": -1, "stale": false, "age": 1}',
    "boolean": b'{"name": "clicks", "consumed_time": true, "stale": false, "age": 1}',
    "another name": b'{"name": "views", "consumed_time": 1, "stale": false, "age": 1}',
}


@pytest.mark.parametrize("body", GARBAGE.values(), ids=GARBAGE)
def test_garbage_is_an_error(body: bytes):
    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(OSError, match="data delay at http"):
            DataDelay(f"http://127.0.0.1:{server.server_port}", "clicks")()
        server.shutdown()


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("kafka:9092", "clicks"), "expected http://HOST:PORT"),
        (("http://h:1", "a/b"), "expected letters, digits"),
        (("http://h:1", ""), "expected letters, digits"),
        (("http://h:1", "a" * 101), "at most 100"),
    ],
)
def test_wrong_arguments_of_the_client(arguments: tuple[str, str], what: str):
    with pytest.raises(InputError, match=what):
        DataDelay(*arguments)
    with pytest.raises(InputError, match="expected s, ms, us, datetime"):
        DataDelay("http://h:1", "clicks", unit="minutes")


def test_collector_reports_to_the_api(kafka_broker: Kafka, api: str, tmp_path: Path):
    """A15: both commands together, through a consumer that falls behind, catches up and pauses."""
    topic, group = kafka_broker.make_topic(), "g-command"
    put(kafka_broker, topic, [START - 900, START - 800])
    commit(kafka_broker, group, {(topic, 0): 1})
    command = ["data-delay", "collect", "clicks", "--group", group, "--bootstrap-servers", kafka_broker.bootstrap]
    command += ["--to", api, "--interval", "0.05", "--json"]
    delay = DataDelay(api, "clicks")
    process = loaded().start("-m", "txstorm", *command, output=tmp_path / "lines")
    try:
        kafka_broker.wait(lambda: delay() == START - 900, "the first report", 60)
        commit(kafka_broker, group, {(topic, 0): 2})
        before = time.time() * 1000
        kafka_broker.wait(lambda: (delay() or 0) >= before, "a report without delay", 60)
        assert delay() <= time.time() * 1000
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
    reports = [json.loads(line) for line in (tmp_path / "lines").read_text().splitlines()]
    first = {"consumed": 0, "end": 2, "time": START - 900, "caught_up": False}
    assert reports[0]["partitions"] == {f"{topic}/0": first}
    assert reports[-1]["delay"] == 0


def test_collecting_once(kafka_broker: Kafka, command: Commands):
    topic, group = kafka_broker.make_topic(), "g-once"
    put(kafka_broker, topic, [START - 900, START - 800])
    commit(kafka_broker, group, {(topic, 0): 1})
    group_of = ["--group", group, "--bootstrap-servers", kafka_broker.bootstrap]
    shown = command.printed("data-delay", "collect", "clicks", *group_of, "--once")
    moment = datetime.fromtimestamp((START - 900) / 1000, UTC).isoformat(timespec="milliseconds")
    assert f"clicks: consumed up to {moment}, " in shown
    assert f"; slowest {topic}/0, offset 0 of 2; 0 of 1 partitions at their end" in shown


BAD_COLLECTORS = {
    "no consumer": ([], "either --data-dir DIR or --group GROUP"),
    "two consumers": (["--group", "g", "--data-dir", "d"], "either --data-dir DIR or --group GROUP"),
    "empty group": (["--group", ""], "either --data-dir DIR or --group GROUP"),
    "empty brokers": (["--group", "g", "--bootstrap-servers", " "], "--bootstrap-servers is empty"),
    "binary settings": (["--group", "g", "--kafka-config", "binary"], "binary: expected text in UTF-8"),
    "source of a group": (["--group", "g", "--source", "s"], "--source needs --data-dir"),
    "no directory": (["--data-dir", "nowhere"], "data directory nowhere does not exist"),
    "URL": (["--group", "g", "--to", "delays:1"], "expected http://HOST:PORT"),
    "interval": (["--group", "g", "--interval", "0"], "--interval"),
    "own setting": (["--group", "g", "--kafka-config", "own"], "'group.id' is txstorm's own"),
    "line": (["--group", "g", "--kafka-config", "bad"], "bad, line 2: expected NAME=VALUE"),
    "no file": (["--group", "g", "--kafka-config", "missing"], "missing: No such file"),
    "away": (["--group", "g"], "kafka: 127.0.0.1:1"),
}


BAD_SERVERS = {
    "open to all": (["--host", "0.0.0.0", "--port", "0"], "give a token"),
    "unknown host": (["--host", "no.such.host.invalid", "--token", "t"], "cannot listen on"),
    "port": (["--port", "70000"], "--port"),
}


@pytest.mark.usefixtures("in_tmp")
@pytest.mark.parametrize("what", [*BAD_COLLECTORS, *BAD_SERVERS])
def test_bad_command_lines(what: str, command: Commands):
    Path("own").write_text("group.id=g\n")
    Path("binary").write_bytes(b"\xff\xfe")
    Path("bad").write_text("# a comment\nsasl.password\n")
    collect = ["collect", "clicks", "--bootstrap-servers", "127.0.0.1:1", "--once"]
    options, message = {**BAD_COLLECTORS, **BAD_SERVERS}[what]
    assert message in command.refused(
        "data-delay", *(["serve"] if what in BAD_SERVERS else collect), "--json", *options
    )
