"""The sample of Hailstorm on real servers: hashtags to Kafka, their counts, and the registry in ZooKeeper."""

import uuid
from collections import Counter
from typing import Any

import pytest
from commands import Commands

from jobs.producers.hashtags import FILES
from jobs.trending_hashtags import make
from txstorm import run

pytestmark = pytest.mark.integration


@pytest.fixture
def command(capsys, monkeypatch, tmp_path) -> Commands:
    monkeypatch.chdir(tmp_path)
    return Commands(capsys, monkeypatch)


def test_the_emitter_sends_and_the_sample_counts_and_goes_on(kafka_broker: Any, command: Commands):
    topic = f"tags-{uuid.uuid4().hex[:8]}"
    at = ("--broker", kafka_broker.bootstrap, "--topic", topic)
    emit = ("hailstorm", "run_sample_emitter", *at, "--sleep-ms", "0", "--count")
    plain: Counter[str] = Counter()
    for count in (130, 60):
        assert command.json(*emit, count) == {"topic": topic, "sent": count}
        plain.update(FILES[0].read_text().split()[:count])
        found = command.json("hailstorm", "run_sample", "--use-kafka", *at, "--n", "3")
        best = sorted(plain.items(), key=lambda one: (-one[1], one[0]))[:3]
        assert (found["records"], found["top"]) == (plain.total(), [list(one) for one in best])
    assert sum(found["clock"].values()) == 190 - len(found["clock"])
    assert {name.rpartition("-")[0] for name in found["clock"]} == {topic}
    told = command.refused("hailstorm", "run_sample_emitter", "--broker", "127.0.0.1:1", "--count", "1")
    assert "check --broker, and that the broker runs" in told


def test_the_registry_is_made_and_shown(zookeeper_server: Any, command: Commands, tmp_path):
    connect = zookeeper_server.new_chroot()
    at = ("--connect", connect, "--topology", "trending-hashtags")
    assert command.json("hailstorm", "zk_init", *at)["root"].endswith("/hailstorm/trending-hashtags")
    assert command.json("hailstorm", "zk_show", *at) == {"master_state": None, "living_processors": {}}
    assert command.printed("hailstorm", "zk_show", *at) == "trending-hashtags: no run\n"
    (tmp_path / "a.txt").write_text("#x\n#y\n")
    settings = {"zookeeper_acl": "open"}
    handle = run(
        make([tmp_path / "a.txt"], counts=1, topns=1),
        engine="local",
        data_dir=tmp_path / "d",
        ledger=f"zookeeper:{connect}",
        settings=settings,
    )
    try:
        handle.processAllAvailable()
        for _ in range(600):
            found = command.json("hailstorm", "zk_show", *at)
            if found["living_processors"].get("counts-0", {}).get("clock") == {"a": 1}:
                break
        assert found["master_state"]["state"] == "Flowing"
        assert found["living_processors"].keys() == {
            "hashtags-0",
            "hashtags-1",
            "counts-0",
            "topn-0",
            "top-0",
            "sink-0",
        }
        assert found["living_processors"]["sink-0"]["state"] == "SinkRunning"
        shown = command.printed("hailstorm", "zk_show", *at).splitlines()
        assert shown[0].startswith("trending-hashtags: Flowing")
        assert len(shown) == 8
    finally:
        handle.stop()
