"""The scripts `scripts/kafka`, `scripts/redis` and `scripts/zookeeper`, run as a user runs them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
from confluent_kafka.admin import AdminClient
from kazoo.client import KazooClient

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]
Script = Callable[..., tuple[int, str]]


@pytest.fixture
def script(tmp_path: Path) -> Iterator[Script]:
    """Return a function that runs ``scripts/NAME ARGUMENTS`` on private data; its result: exit code and output."""

    started = set()

    def run(name: str, *arguments: str) -> tuple[int, str]:
        command = [ROOT / "scripts" / name, *arguments, "--directory", tmp_path]
        environment = {**os.environ, "TXSTORM_VENV": "keep"}
        # A file and no pipe: the servers would hold its end open.
        with (tmp_path / "printed").open("w+") as printed:
            code = subprocess.run(command, env=environment, stdout=printed, stderr=printed, check=False).returncode
            printed.seek(0)
            if (tmp_path / name).exists():
                started.add(name)
            return code, printed.read()

    yield run
    for name in sorted(started):
        run(name, "stop", "--delete")


def found(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    assert match, text
    return match[1]


def run_example(script: Script, name: str, known: str, address: str) -> str:
    """Run the Python example at the end of the script's --help, against a server at another address."""
    lines = script(name, "--help")[1].split("from Python", 1)[1].splitlines()[1:]
    code = textwrap.dedent("\n".join(lines)).replace(known, address)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_broker_for_trying_out(script: Script, tmp_path: Path):
    code, text = script("kafka")
    assert code == 0, text
    address = found(r"bootstrap.servers +(\S+)", text)
    run_example(script, "kafka", "127.0.0.1:9092", address)
    assert len(AdminClient({"bootstrap.servers": address}).list_topics(timeout=10).topics["words"].partitions) == 8
    assert text == "starting Kafka (brokers: 1)\n" + script("kafka", "status")[1]
    assert script("kafka", "stop") == (0, f"Kafka is not running; its data is in {tmp_path}/kafka\n")
    code, text = script("kafka", "status")
    assert (code, "Kafka broker 0 is not running" in text) == (1, True)


@pytest.mark.long
def test_a_server_that_died_is_seen_and_started_again(script: Script, tmp_path: Path):
    assert script("zookeeper", "status") == (1, f"ZooKeeper has not been started in {tmp_path}/zookeeper\n")
    code, text = script("zookeeper")
    assert code == 0, text
    hosts, pid = found(r"hosts +(\S+)", text), found(r"pid (\d+)", text)
    client = KazooClient(hosts)
    client.start(timeout=10)
    client.create("/kept", b"1")
    client.stop()
    client.close()
    listed = run_example(script, "zookeeper", "127.0.0.1:2181", hosts)
    assert "'kept'" in listed
    assert text == "starting ZooKeeper (servers: 1)\n" + script("zookeeper", "start")[1]  # which does nothing

    os.kill(int(pid), signal.SIGKILL)
    code, text = script("zookeeper", "status")
    assert (code, "ZooKeeper server 0 is not running" in text) == (1, True)
    code, text = script("zookeeper")
    assert (code, found(r"hosts +(\S+)", text)) == (0, hosts)
    assert run_example(script, "zookeeper", "127.0.0.1:2181", hosts) == listed

    code, text = script("zookeeper", "--servers", "3")
    assert code == 2
    assert (
        f"{tmp_path}/zookeeper: expected servers: 1, as at the first start, got 3; `stop --delete` deletes them" in text
    )
    assert script("zookeeper", "stop", "--delete") == (0, "ZooKeeper is not running\n")
    assert not (tmp_path / "zookeeper").exists()


def test_a_redis_server_keeps_its_data(script: Script):
    code, text = script("redis")
    assert code == 0, text
    host, port = found(r"address +(\S+)", text).split(":")
    client = redis.Redis(host, int(port))
    client.set("kept", 1)
    assert client.config_get("appendfsync") == {"appendfsync": "always"}
    pid = found(r"pid (\d+)", text)
    client.close()
    os.kill(int(pid), signal.SIGKILL)
    code, text = script("redis", "status")
    assert (code, "Redis server 0 is not running" in text) == (1, True)
    assert script("redis")[0] == 0
    assert "b'kept'" in run_example(script, "redis", '"127.0.0.1", 6379', f'"{host}", {port}')
    assert script("redis", "stop", "--delete") == (0, "Redis is not running\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["kafka", "--brokers", "0"], "argument --brokers: invalid choice: 0"),
        (["kafka", "--brokers", "3", "stop"], "--brokers is an option of start"),
        (["zookeeper", "--delete"], "--delete is an option of stop"),
        (["zookeeper", "restart"], "invalid choice: 'restart'"),
    ],
)
def test_wrong_input(script: Script, arguments: list[str], message: str):
    code, text = script(*arguments)
    assert (code, message in text) == (2, True), text


@pytest.mark.parametrize("name", ["kafka", "redis", "zookeeper"])
def test_the_help_has_examples(script: Script, name: str):
    code, text = script(name, "--help")
    assert code == 0
    for part in (f"scripts/{name} stop --delete", "from Python", "127.0.0.1"):
        assert part in text
