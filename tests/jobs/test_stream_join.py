"""``jobs/stream_join.py``: two topics of a real broker joined as a configuration says; faults of configurations."""

from __future__ import annotations

import json
import os
import time
import uuid
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from programs import loaded
from servers.redis import Redis
from servers.running import Kafka

from jobs.producers.clicks_and_views import LAST, events, main
from txstorm.results.views import SinkView

ROOT = Path(__file__).resolve().parents[2]
JOB = ROOT / "jobs" / "stream_join.py"
EXAMPLE = ROOT / "jobs" / "data" / "stream_join.toml"


def run(*arguments: Any, cwd: Path) -> CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return loaded().run(JOB, *map(str, arguments), cwd=cwd, env=environment)


FIVE = """
name = "clicks and views"
servers = "127.0.0.1:1"
variant = "memory"
[left]
topic = "views"
fields = { view = "int", at = "int" }
key = "vew"
time = "at"
[right]
topic = "clicks"
fields = { click = "int", view = "int", at = "int" }
key = "view"
time = "at"
lag = "soon"
[join]
after = "10 min"
"""


@pytest.mark.integration
def test_five_errors_are_one_message_and_nothing_is_started(tmp_path: Path):
    """A19: all errors of a configuration are listed at once, with exit code 2, before anything is written or asked."""
    (tmp_path / "five.toml").write_text(FIVE)
    done = run("--config", "five.toml", "--engine", "local", cwd=tmp_path)
    lines = done.stderr.splitlines()
    assert done.returncode == 2
    assert lines[0] == "error: five.toml: 5 errors"
    assert [line.split(":")[0].strip() for line in lines[1:]] == [
        "name",
        "variant",
        "left.key",
        "right.lag",
        "join.before",
    ]
    assert [one.name for one in tmp_path.iterdir()] == ["five.toml"]
    as_json = run("--config", "five.toml", "--json", cwd=tmp_path)
    document = json.loads(as_json.stdout.splitlines()[-1])["error"]
    assert (document["type"], document["exit_code"]) == ("InputError", 2)
    assert all(place in document["message"] for place in ("left.key", "join.before"))


@pytest.mark.integration
def test_the_printed_example_is_valid(tmp_path: Path):
    """The example teaches every option, and passes the check."""
    shown = run("--print-example", cwd=tmp_path)
    (tmp_path / "clicks.toml").write_text(shown.stdout)
    assert shown.stdout == EXAMPLE.read_text(encoding="utf-8")
    checked = run("--config", "clicks.toml", "--check", cwd=tmp_path)
    assert (checked.returncode, checked.stdout) == (0, "clicks.toml: no errors\n")
    text = run("--help", cwd=tmp_path).stdout
    assert all(word in text for word in ("--config", "--print-example", "--check", "Exit codes", "Redis"))


@pytest.mark.integration
def test_an_unreachable_broker_is_reported(tmp_path: Path):
    (tmp_path / "clicks.toml").write_text(EXAMPLE.read_text("utf-8").replace("127.0.0.1:9092", "127.0.0.1:1"))
    done = run("--config", "clicks.toml", "--engine", "local", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: kafka spout: the brokers cannot be asked: ")


# --- on a real broker -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def produced(kafka_broker: Kafka) -> str:
    """Produce views and clicks once; return the address of the broker."""
    assert main([kafka_broker.bootstrap, "--minutes-per-second", "1000"]) == 0
    return kafka_broker.bootstrap


def configuration(path: Path, servers: str, replaced: dict[str, str]) -> Path:
    text = EXAMPLE.read_text(encoding="utf-8").replace("127.0.0.1:9092", servers)
    for old, new in replaced.items():
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)
    return path


def expected() -> list[tuple[int, int | None]]:
    """Return each view with its click, or None."""
    minutes = range(1, LAST + 1)
    views, clicks = ([json.loads(one) for n in minutes for one in events(name, n)] for name in ("views", "clicks"))
    clicked = {one["view"]: one["click"] for one in clicks}
    return sorted(((one["view"], clicked.get(one["view"])) for one in views), key=str)


def read_committed(bootstrap: str, topic: str) -> list[dict[str, Any]]:
    """Return the values of the committed records of a topic, read without txstorm."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "reader", "isolation.level": "read_committed"}
    consumer = Consumer({**settings, "enable.auto.commit": False, "enable.partition.eof": True})
    partitions = consumer.list_topics(topic, 10).topics[topic].partitions
    consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
    found, ended = list[dict[str, Any]](), 0
    while ended < len(partitions):
        for message in consumer.consume(1000, 1.0):
            if message.error():
                ended += 1
            else:
                found.append(json.loads(message.value()))
    consumer.close()
    return found


ONE, TWO = [["--end-of-input"]], [["--until-txid", "1"], ["--end-of-input"]]


def finish(config: Path, runs: list[list[str]]) -> None:
    """Run a configuration, once or several times, to the end of input."""
    for ending in runs:
        done = run("--config", config, "--engine", "local", *ending, "--data-dir", "data", cwd=config.parent)
        assert done.returncode == 0, done.stderr


@pytest.mark.integration
@pytest.mark.slow
def test_two_topics_joined_in_a_state(produced: str, tmp_path: Path):
    """A19, A23: each view is in the table once, with its click or alone, and again in the table of those alone."""
    changes = {'# unmatched_left = "n': 'unmatched_left = "n'}
    finish(configuration(tmp_path / "clicks.toml", produced, changes), [*TWO, *ONE])  # the last finds nothing to do
    rows = SinkView(tmp_path / "data", "joined").to_pylist()
    assert sorted(((row["left_view"], row["click"]) for row in rows), key=str) == expected()
    alone = SinkView(tmp_path / "data", "not-clicked").to_pylist()
    assert sorted(row["view"] for row in alone) == sorted(view for view, click in expected() if click is None)


@pytest.mark.integration
@pytest.mark.slow
def test_two_topics_joined_over_redis_into_a_topic(produced: str, redis_server: Redis, tmp_path: Path):
    """A19, U12: each view is in the topic once, for readers of committed records."""
    topic = f"joined-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": produced})
    admin.create_topics([NewTopic(topic, 2, 1)])[topic].result()
    store = f'[store]\nurl = "redis://{redis_server.address()}/0"\nretain = "2 h"\nprefix = "{topic}"\n[sink]'
    changes = {
        'variant = "state"': 'variant = "redis"',
        "[sink]": store,
        '"delta"': '"kafka"',
        '"joined"': f'"{topic}"',
    }
    finish(configuration(tmp_path / "clicks.toml", produced, changes), TWO)
    rows = read_committed(produced, topic)
    assert sorted(((row["left_view"], row["click"]) for row in rows), key=str) == expected()


@pytest.mark.integration
@pytest.mark.slow
def test_two_topics_joined_over_a_store_server(produced: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A10, A19: the same over HTTP, with the token from the environment."""
    monkeypatch.setenv("STORE_TOKEN", "secret")
    environment = {**os.environ, "TXSTORM_STORE_TOKEN": "secret"}
    command = ["-m", "txstorm", "store-server", "--store", "memory", "--port", "0", "--json"]
    output = tmp_path / "server"
    server = loaded().start(*command, env=environment, output=output)
    try:
        url = json.loads(awaited(output))["url"]
        store = f'[store]\nurl = "{url}"\ntoken = "$STORE_TOKEN"\nretain = "2 h"\n[sink]'
        finish(configuration(tmp_path / "clicks.toml", produced, {'"state"': '"rest"', "[sink]": store}), ONE)
    finally:
        server.kill()
        server.wait()
    rows = SinkView(tmp_path / "data", "joined").to_pylist()
    assert sorted(((row["left_view"], row["click"]) for row in rows), key=str) == expected()


@pytest.mark.integration
@pytest.mark.slow
def test_the_same_in_code_over_two_topics(produced: str, tmp_path: Path):
    """A1, A23: the job that is written out joins the topics of a broker, each with two partitions."""
    target = f"jobs.clicks_and_views:topology({produced!r})"
    command = ["run", target, "--engine", "local", "--end-of-input", "--data-dir", tmp_path / "data"]
    done = loaded().run("-m", "txstorm", *command, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    rows = SinkView(tmp_path / "data", "joined").to_pylist()
    assert sorted(((row["view"], row["click"]) for row in rows), key=str) == expected()


def awaited(output: Path) -> str:
    """Return the first line of a file, as soon as it has one."""
    limit = time.monotonic() + 60
    while not (output.exists() and "\n" in output.read_text()):
        assert time.monotonic() < limit
        time.sleep(0.05)
    return output.read_text().splitlines()[0]
