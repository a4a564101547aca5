"""Command lines of `scripts/kafka`, `scripts/zookeeper` and `scripts/redis`: servers that outlive the command."""

import argparse
import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from servers.cluster import Cluster, started
from servers.java import ROOT
from servers.process import DetachedProcess, ServerError
from servers.running import Kafka, Redis, ZooKeeper

DIRECTORY = ROOT / ".cache" / "servers"
FORMAT = 1  # version of the file that stores the ports

KAFKA_HELP = """\
examples:
  scripts/kafka                       start a broker, or show the address of the running one
  scripts/kafka --brokers 3 start     start three brokers, for example to try what happens when one is killed
  scripts/kafka status                show state, process id, log and address of every broker
  scripts/kafka stop                  stop the brokers; their topics are kept for the next start
  scripts/kafka stop --delete         stop the brokers and delete all their data

Create a topic and send a record to it from Python (pip install confluent-kafka):
  from confluent_kafka import Producer
  from confluent_kafka.admin import AdminClient, NewTopic
  admin = AdminClient({"bootstrap.servers": "127.0.0.1:9092"})
  admin.create_topics([NewTopic("words", 8, 1)])["words"].result()
  producer = Producer({"bootstrap.servers": "127.0.0.1:9092"})
  producer.produce("words", b"storm")
  producer.flush()
"""

ZOOKEEPER_HELP = """\
examples:
  scripts/zookeeper                     start a server, or show the address of the running one
  scripts/zookeeper --servers 3 start   start an ensemble of three, which survives the loss of one server
  scripts/zookeeper status              show state, process id, log and address of every server, and the leader
  scripts/zookeeper stop                stop the servers; their nodes are kept for the next start
  scripts/zookeeper stop --delete       stop the servers and delete all their data

List the nodes from Python (pip install kazoo):
  from kazoo.client import KazooClient
  client = KazooClient("127.0.0.1:2181")
  client.start()
  print(client.get_children("/"))
"""


REDIS_HELP = """\
examples:
  scripts/redis                  start a server, or show the address of the running one
  scripts/redis status           show state, process id, log and address of the server
  scripts/redis stop             stop the server; its data is kept for the next start
  scripts/redis stop --delete    stop the server and delete its data

Every write is synced to disk before it is answered. List the keys from Python (pip install redis):
  from redis import Redis
  print(Redis("127.0.0.1", 6379).keys())
"""


@dataclass(frozen=True, slots=True)
class Kind:
    """Differences between the commands."""

    name: str
    servers: str  # plural noun for the servers
    help: str
    known: int  # default port of clients
    make: type[Any]
    show: Callable[[Any], list[tuple[str, str]]]


def _show_kafka(running: Kafka) -> list[tuple[str, str]]:
    secure = running.secure
    login = f"{secure['sasl.mechanism']} {secure['sasl.username']} {secure['sasl.password']}"
    encrypted = f"{secure['bootstrap.servers']}  {secure['security.protocol']}, {login}, CA {secure['ssl.ca.location']}"
    return [("bootstrap.servers", running.bootstrap), ("with a password", encrypted)]


def _show_zookeeper(running: ZooKeeper) -> list[tuple[str, str]]:
    modes = ", ".join(running.mode(i) or "down" for i in range(len(running.ports)))
    ledger = f"--ledger zookeeper:{running.hosts}/txstorm --set zookeeper_acl=open"
    return [("hosts", running.hosts), ("ledger", ledger), ("modes", modes)]


def _show_redis(running: Redis) -> list[tuple[str, str]]:
    pool = json.dumps({"jedisPoolConfig": {"host": "127.0.0.1", "port": running.ports[0]}})
    return [
        ("address", running.address()),
        ("state", f"--set state_provider=redis --set state_provider_config='{pool}'"),
    ]


KINDS = {
    "kafka": Kind("Kafka", "brokers", KAFKA_HELP, 9092, Kafka, _show_kafka),
    "zookeeper": Kind("ZooKeeper", "servers", ZOOKEEPER_HELP, 2181, ZooKeeper, _show_zookeeper),
    "redis": Kind("Redis", "servers", REDIS_HELP, 6379, Redis, _show_redis),
}


class InputError(Exception):
    """Raised for an invalid command line or an unusable directory."""


@dataclass(frozen=True, slots=True)
class Place:
    """Directory of the servers of one kind; it stores their ports, so that the next start reuses them."""

    kind: Kind
    directory: Path

    @property
    def _file(self) -> Path:
        return self.directory / "servers.json"

    def saved(self) -> Cluster | None:
        """Return the cluster that was started in this directory, running or not; None if there is none."""
        if not self._file.exists():
            return None
        found = json.loads(self._file.read_text(encoding="utf-8"))
        if found.get("version") != FORMAT:
            version = found.get("version")
            raise InputError(f"{self._file} has version {version}, expected {FORMAT}: remove its directory")
        return self._make(found["ports"])

    def new(self, count: int) -> Cluster:
        """Create a cluster of `count` servers for this directory and store their ports, without starting them."""
        ports = self.kind.make.pick_ports(count, range(self.kind.known, self.kind.known + count))
        self.directory.mkdir(parents=True, exist_ok=True)
        partial = self._file.with_suffix(".new")
        partial.write_text(json.dumps({"version": FORMAT, "ports": ports}), encoding="utf-8")
        os.replace(partial, self._file)
        return self._make(ports)

    def _make(self, ports: list[Any]) -> Cluster:
        return self.kind.make(self.directory, ports, process=DetachedProcess)


def _start(place: Place, count: int | None) -> int:
    cluster = place.saved()
    if cluster is None:
        cluster = place.new(count or 1)
    elif count not in (None, len(cluster.servers)):
        raise InputError(
            f"{place.directory}: expected {place.kind.servers}: {len(cluster.servers)}, as at the first start, got "
            f"{count}; `stop --delete` deletes them with their data"
        )
    if not all(server.alive for server in cluster.servers):
        what = f"{place.kind.name} ({place.kind.servers}: {len(cluster.servers)})"
        print(f"starting {what}", file=sys.stderr, flush=True)
        cluster.stop()
        started(cluster)
    return _print(place, cluster)


def _status(place: Place) -> int:
    cluster = place.saved()
    if cluster is None:
        print(f"{place.kind.name} has not been started in {place.directory}")
        return 1
    return _print(place, cluster)


def _stop(place: Place, *, delete: bool) -> int:
    cluster = place.saved()
    if cluster is not None:
        cluster.stop()
        if delete:
            shutil.rmtree(place.directory)
    print(
        f"{place.kind.name} is not running"
        + ("" if cluster is None or delete else f"; its data is in {place.directory}")
    )
    return 0


def _print(place: Place, cluster: Cluster) -> int:
    """Print states, process ids, log files and addresses of the servers; return 0 if all are ready, else 1."""
    serves = [cluster.ready(i) for i in range(len(cluster.servers))]
    for server, ready in zip(cluster.servers, serves, strict=True):
        state = "is ready" if ready else "is not ready" if server.alive else "is not running"
        print(f"{server.name} {state}{f', pid {server.pid}' if server.alive else ''}, log {server.log}")
    where = "" if place.directory.parent == DIRECTORY else f" --directory {place.directory.parent}"
    for name, value in [*place.kind.show(cluster), ("stop with", f"scripts/{place.kind.name.lower()} stop{where}")]:
        print(f"  {name:18} {value}")
    return int(not all(serves))


def _arguments(kind: Kind, arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=f"scripts/{kind.name.lower()}",
        description=f"{kind.name} on this machine, for development: it listens on 127.0.0.1 only and keeps its data between starts.",
        epilog=kind.help,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("action", nargs="?", choices=["start", "stop", "status"], default="start")
    parser.add_argument(
        f"--{kind.servers}", dest="count", type=int, choices=range(1, 10), metavar="N", help="number to start (1)"
    )
    parser.add_argument("--delete", action="store_true", help="with stop: delete all data")
    parser.add_argument("--directory", type=Path, default=DIRECTORY, help="directory for data and logs (%(default)s)")
    given = parser.parse_args(arguments)
    if given.delete and given.action != "stop":
        parser.error("--delete is an option of stop")
    if given.count and given.action != "start":
        parser.error(f"--{kind.servers} is an option of start")
    return given


def main(name: str, arguments: Sequence[str]) -> int:
    """Run the command `name` (kafka, redis or zookeeper); return the exit code.

    The code is 0 on success, 1 if servers that should be running are not, and 2 for invalid input."""
    kind = KINDS[name]
    given = _arguments(kind, arguments)
    place = Place(kind, given.directory.resolve() / name)
    try:
        if given.action == "start":
            return _start(place, given.count)
        return _status(place) if given.action == "status" else _stop(place, delete=given.delete)
    except (InputError, ServerError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, InputError) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
