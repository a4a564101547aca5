"""Kafka job that counts hashtags, and the producer of its tweets."""

import json
import uuid
from collections import Counter
from typing import Any

import pytest
from commands import printed_by
from runs import ended
from servers.kafka_reading import messages
from servers.running import Kafka

from jobs.kafka_producer import TAGS, main
from jobs.kafka_to_delta import topology

pytestmark = pytest.mark.integration


@pytest.fixture
def topic() -> str:
    return f"tweets-{uuid.uuid4().hex[:8]}"


def committed_hashtags(bootstrap: str, topic: str) -> tuple[int, Counter[str]]:
    """Return the number of committed messages and the counts of their hashtags, computed without txstorm."""
    texts = [json.loads(message.value())["text"] for message in messages(bootstrap, topic)]
    tags = Counter(word.rstrip("?!,.") for text in texts for word in text.split() if word.startswith("#"))
    return len(texts), tags


def counted(handle: Any) -> dict[str, int]:
    return {row["hashtag"]: row["n"] for row in handle.state("hashtags").to_pylist()}


def test_hashtags_of_aborted_transactions_do_not_count(kafka_broker: Kafka, topic: str, tmp_path, capsys):
    assert main([kafka_broker.bootstrap, topic, "--count", "5000", "--abort", "0.3", "--partitions", "4"]) == 0
    told = capsys.readouterr().out.splitlines()
    messages, expected = committed_hashtags(kafka_broker.bootstrap, topic)
    assert told[0].startswith(f"{messages:,} tweets committed, {5000 - messages:,} in aborted transactions")
    assert 2500 < messages < 4500
    assert set(expected) == set(TAGS)

    built = topology(topic, kafka_broker.bootstrap, max_batch_rows=700)
    handle = ended(built, tmp_path / "data")
    assert handle.committed > 5
    assert counted(handle) == dict(expected)
    assert told[1].split() == [expected.most_common(1)[0][0], f"{expected.most_common(1)[0][1]:,}"]

    assert main([kafka_broker.bootstrap, topic, "--count", "500", "--seed", "8"]) == 0
    ended(built, tmp_path / "data")
    assert counted(handle) == dict(committed_hashtags(kafka_broker.bootstrap, topic)[1])


def test_the_same_seed_produces_the_same_hashtags(kafka_broker: Kafka, topic: str, capsys):
    for name in (topic, f"{topic}-2"):
        assert main([kafka_broker.bootstrap, name, "--count", "300", "--abort", "0.5"]) == 0
    text = capsys.readouterr().out
    assert text[: len(text) // 2] == text[len(text) // 2 :]


def test_an_unreachable_broker_is_reported(capsys):
    assert main(["127.0.0.1:1", "tweets", "--count", "1"]) == 1
    assert capsys.readouterr().err.startswith("error: 127.0.0.1:1: ")


def test_the_kafka_job_runs_from_the_command_line(kafka_broker: Kafka, topic: str, tmp_path):
    assert main([kafka_broker.bootstrap, topic, "--count", "200"]) == 0
    target = f"jobs.kafka_to_delta:topology({topic!r}, {kafka_broker.bootstrap!r}, max_batch_rows=100)"
    command = ["run", target, "--engine", "local", "--available-now", "--json", "--data-dir", tmp_path / "data"]
    assert json.loads(printed_by("-m", "txstorm", *command).splitlines()[-1])["committed_txid"] >= 2
