"""The scripts `scripts/kafka`, `scripts/redis` and `scripts/zookeeper`, run as a user runs them."""

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
def test_a_zookeeper_server_for_trying_out(script: Script):
    code, text = script("zookeeper")
    assert code == 0, text
    hosts = found(r"hosts +(\S+)", text)
    assert "'zookeeper'" in run_example(script, "zookeeper", "127.0.0.1:2181", hosts)
    assert text == "starting ZooKeeper (servers: 1)\n" + script("zookeeper", "status")[1]


def test_a_redis_server_that_died_is_seen_and_started_again(script: Script, tmp_path: Path):
    assert script("redis", "status") == (1, f"Redis has not been started in {tmp_path}/redis\n")
    code, text = script("redis")
    assert code == 0, text
    address, pid = found(r"address +(\S+)", text), found(r"pid (\d+)", text)
    host, port = address.split(":")
    with redis.Redis(host, int(port)) as client:
        client.set("kept", 1)
        assert client.config_get("appendfsync") == {"appendfsync": "always"}
    assert text == "starting Redis (servers: 1)\n" + script("redis", "start")[1]  # which does nothing

    os.kill(int(pid), signal.SIGKILL)
    code, text = script("redis", "status")
    assert (code, "Redis server 0 is not running" in text) == (1, True)
    code, text = script("redis")
    assert (code, found(r"address +(\S+)", text)) == (0, address)
    assert "b'kept'" in run_example(script, "redis", '"127.0.0.1", 6379', f'"{host}", {port}')

    code, text = script("redis", "--servers", "3")
    assert code == 2
    assert f"{tmp_path}/redis: expected servers: 1, as at the first start, got 3; `stop --delete` deletes them" in text
    assert script("redis", "stop", "--delete") == (0, "Redis is not running\n")
    assert not (tmp_path / "redis").exists()


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
