"""The registry of Hailstorm topologies on a real ZooKeeper server: nodes that come, go, and come again."""

import dataclasses
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from servers.running import ZooKeeper

from txstorm import TransactionalTopologyBuilder, run
from txstorm.bolts import CountByKey
from txstorm.clients.zookeeper.operations import Verify
from txstorm.errors import DataDirectoryError, HeldError
from txstorm.hailstorm.companion import companion_for
from txstorm.hailstorm.registry import Registry, connect, init_registry, read_registry, registry_root
from txstorm.lanes import THREADS
from txstorm.operations.move_ledger import all_entries
from txstorm.runtime.handle import RunHandle
from txstorm.spouts import MemoryTransactionalSpout
from txstorm.topology.settings import Settings

pytestmark = pytest.mark.integration
SECONDS = 60
LASTING = {"zookeeper_session_timeout": 60, "zookeeper_connect_timeout": 60, "zookeeper_patience": 120}
NAMES = {"spout-0", "spout-1", "counts-0", "counts-1"}


def wait(true: Callable[[], Any]) -> None:
    end = time.monotonic() + SECONDS
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


class Place:
    """The chroot of a test, an independent client, and runs with their ledger there."""

    def __init__(self, hosts: str, chroot: str, data_dir: Path) -> None:
        self.hosts, self.chroot, self.data_dir = hosts, chroot, data_dir
        self.source = MemoryTransactionalSpout([["a", "b"], ["c"]], ["word"], 1)
        self.states: list[str] = []
        self.runs: list[RunHandle] = []
        self.client = KazooClient(hosts)
        self.client.start(timeout=10)

    def start(self, data_dir: Path | None = None, **more: Any) -> RunHandle:
        builder = TransactionalTopologyBuilder("words", "spout", self.source, 2)
        builder.set_bolt("counts", CountByKey("word", "counts"), 2).fields_grouping("spout", ["word"])
        companion = companion_for(watch=[lambda state: self.states.append(state.name)])
        topology = dataclasses.replace(builder.build_topology(), companion=companion)
        settings = {"ledger": f"zookeeper:{self.hosts}{self.chroot}", "min_interval": 0.02, **LASTING, **more}
        self.runs.append(run(topology, engine="local", settings=settings, data_dir=data_dir or self.data_dir))
        return self.runs[-1]

    def read(self) -> dict[str, Any]:
        return read_registry(self.hosts, self.chroot, "words")

    def flows(self) -> bool:
        found = self.read()
        return bool(found["master_state"]) and found["master_state"]["state"] == "Flowing" and self.all_run(found)

    def all_run(self, found: dict[str, Any]) -> bool:
        states = {name: one["state"] for name, one in found["living_processors"].items()}
        return states == {name: "SpoutRunning" if name.startswith("s") else "BoltRunning" for name in NAMES}

    def close(self) -> None:
        for handle in self.runs:
            handle.stop()
        self.client.stop()
        self.client.close()


@pytest.fixture
def place(zookeeper_server: ZooKeeper, tmp_path: Path) -> Iterator[Place]:
    made = Place(zookeeper_server.hosts, zookeeper_server.new_chroot().removeprefix(zookeeper_server.hosts), tmp_path)
    yield made
    made.close()


def test_a_run_shows_its_processors_until_it_ends_and_a_second_negotiator_is_refused(place: Place) -> None:
    init_registry(place.hosts, place.chroot, "words")
    assert place.read() == {"master_state": None, "living_processors": {}}
    handle = place.start(snapshot_every=0.2)
    wait(lambda: place.states.count("Flowing") > 2)
    wait(place.flows)
    wait(lambda: place.read()["living_processors"]["counts-0"]["clock"] == {"0": 1, "1": 0})
    path = f"{registry_root(place.chroot, 'words')}/master_state"
    wait(lambda: place.client.get(path)[1].version == len(place.states) - 1)  # each state was written
    shown = place.read()
    assert shown["master_state"] == {"format": 1, "state": "Flowing", "clock": None}
    entry = shown["living_processors"]["spout-0"]
    assert (entry["format"], entry["kind"], entry["partition"], entry["offset"]) == (1, "spout", "0", 1)
    wait(lambda: _status(handle)["living_processors"].keys() == NAMES)
    assert {name: {"format": 1, **one} for name, one in _status(handle)["living_processors"].items()} == shown[
        "living_processors"
    ]
    ledger = handle._driver._session.books.ledger
    assert not any(path.startswith("hailstorm") for path, _ in all_entries(ledger))
    with pytest.raises(HeldError) as second:
        place.start(place.data_dir / "second")
    assert (second.value.exit_code, place.flows()) == (3, True)
    handle.stop()
    assert place.read() == {"master_state": None, "living_processors": {}}
    assert handle.exception() is None


def _status(handle: RunHandle) -> dict[str, Any]:
    status: dict[str, Any] = handle._driver.ask(handle._driver.companion.status).result(SECONDS)
    return status


def test_nodes_of_a_lost_processor_go_and_come_and_watchers_see_it(place: Place) -> None:
    handle = place.start()
    wait(place.flows)
    seen: list[set[str]] = []
    place.client.ChildrenWatch(
        f"{registry_root(place.chroot, 'words')}/living_processors", lambda names: seen.append(set(names))
    )
    handle._driver.ask(lambda: handle._driver.lost(None, "it died", "counts-1")).result(SECONDS)
    wait(lambda: seen[-1] == NAMES and len(seen) > 1)
    assert (seen[0], set() in seen) == (NAMES, True)
    assert place.states == ["Initialize", "SpoutsRewind", "Flowing"] * 2
    wait(place.flows)


def test_the_run_goes_on_when_the_session_expires_and_when_the_server_restarts(
    place: Place, zookeeper_server: ZooKeeper
) -> None:
    handle = place.start()
    wait(place.flows)
    registry = handle._driver.companion._registry
    before = registry._session
    second = KazooClient(place.hosts, client_id=registry._zookeeper._kazoo.client_id)
    second.start(timeout=10)
    second.stop()
    second.close()
    wait(lambda: registry._session not in (None, before))
    wait(place.flows)
    zookeeper_server.kill()
    zookeeper_server.restart()
    place.source.add(0, "d")
    wait(lambda: place.read()["living_processors"].get("counts-0", {}).get("clock") == {"0": 2, "1": 0})
    handle.stop()
    assert handle.exception() is None
    assert {row["word"]: row["n"] for row in handle.state("counts").to_pylist()} == dict.fromkeys("abcd", 1)


@pytest.fixture
def root(place: Place) -> str:
    """Return the root of a registry whose guard is a node beside it."""
    place.client.create(f"{place.chroot}/guard", makepath=True)
    return registry_root(place.chroot, "words")


def registry(place: Place, root: str) -> Registry:
    return Registry(lambda: connect(place.hosts), root, [Verify(f"{place.chroot}/guard", 0)], THREADS)


def test_each_state_is_written_and_entries_of_an_earlier_session_are_replaced(place: Place, root: str) -> None:
    left = registry(place, root)
    left.register({"old-0": {}})
    wait(lambda: left._written)
    own = registry(place, root)
    for number in range(20):
        own.show({"state": str(number)})
    own.register({"new-0": {}})
    wait(lambda: place.read()["living_processors"].keys() == {"new-0"})
    found, stat = place.client.get(f"{root}/master_state")
    assert (json.loads(found), stat.version) == ({"format": 1, "state": "19"}, 19)
    assert place.read()["living_processors"] == {"new-0": {"format": 1}}
    place.client.set(f"{place.chroot}/guard", b"another epoch")
    own.show({"state": "too late"})
    wait(lambda: own._over)
    assert place.read()["master_state"]["state"] == "19"
    for one in (own, left):
        one.close()


def test_a_server_that_is_away_is_said_once_and_each_state_is_written_later(
    place: Place, root: str, caplog: pytest.LogCaptureFixture
) -> None:
    away = [True]

    def opened() -> Any:
        return connect(*(("127.0.0.1:1", Settings(zookeeper_connect_timeout=0.2)) if away[0] else (place.hosts,)))

    own = Registry(opened, root, [], THREADS)
    for number in range(3):
        own.show({"state": str(number)})
        own.renew(dict)
    wait(lambda: own._failed and not own._lane._calls.qsize())
    away[0] = False
    wait(lambda: (own.renew(dict), place.read()["master_state"] == {"format": 1, "state": "2"})[1])
    assert place.client.get(f"{root}/master_state")[1].version == 2
    assert caplog.text.count("the run goes on") == 1
    own.close()


@pytest.mark.parametrize("data", [b"{", b'{"format": 2}', b"[]"])
def test_nodes_of_others_are_named(place: Place, root: str, data: bytes) -> None:
    place.client.create(f"{root}/master_state", data, makepath=True)
    with pytest.raises(DataDirectoryError, match=f"{root}/master_state"):
        place.read()
