"""ZooKeeper's password is sent only to servers named by the operator, never to those named by a data directory."""

import json
import socketserver
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import Commands, at_a_terminal
from runs import ended
from servers.running import ZooKeeper

from txstorm import TransactionalTopologyBuilder
from txstorm.bolts import CountByKey
from txstorm.errors import InputError
from txstorm.ledger import credentials
from txstorm.ledger.credentials import AUTH, AUTH_HOSTS, CA, SecretRefused, check_named, named_ledger, over_tls
from txstorm.ledger.location import parse_ledger
from txstorm.operations.status import read_status
from txstorm.results.views import StateView
from txstorm.spouts import MemoryTransactionalSpout
from txstorm.topology.graph import Topology
from txstorm.topology.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
PASSWORD = "canary-of-the-owner-5520"
CONNECTED = struct.pack(">iiqi16s?", 0, 10_000, 1, 16, b"p" * 16, False)


def made(settings: dict[str, str]) -> Topology:
    spout = MemoryTransactionalSpout([["a", "b", "a"]], "word", take=2)
    builder = TransactionalTopologyBuilder("words", "source", spout)
    builder.set_committer_bolt("keep", CountByKey("word", table="counts")).fields_grouping("source", ["word"])
    return builder.set_settings(settings).build_topology()


topology = made({})


class Listener(socketserver.ThreadingTCPServer):
    """A fake ZooKeeper server that accepts any client, and records all bytes that it receives."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), socketserver.BaseRequestHandler)
        self.hosts = f"127.0.0.1:{self.server_address[1]}"
        self.connections, self.heard = 0, b""
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def finish_request(self, client: Any, address: Any) -> None:
        self.connections += 1
        answer = struct.pack(">i", len(CONNECTED)) + CONNECTED
        while data := client.recv(65536):
            self.heard += data
            client.sendall(answer)
            answer = b""


@pytest.fixture
def listener() -> Iterator[Listener]:
    with Listener() as listener:
        yield listener
        listener.shutdown()


@pytest.fixture
def words(in_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set a password in the environment of a process that has named no host yet; return its directory."""
    monkeypatch.setenv(AUTH, f"owner:{PASSWORD}")
    monkeypatch.delenv(AUTH_HOSTS, raising=False)
    monkeypatch.setattr(credentials, "_named_hosts", set())
    return in_tmp


@pytest.fixture
def txstorm(command: Commands, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str]]:
    """Return a function that runs a command as in a new process; result: (exit code, output)."""

    def run_command(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(credentials, "_named_hosts", set())
        code, out, err = command(*arguments)
        return code, out + err

    return run_command


def planted(directory: Path, hosts: str, **settings: Any) -> None:
    """Make `directory` name another ledger, as an attacker with write access could."""
    reached = {"zookeeper_connect_timeout": 1.0, **settings}
    found = {"format": "txstorm-ledger", "version": 1, "ledger": f"zookeeper:{hosts}/words", "settings": reached}
    (directory / "ledger.json").write_text(json.dumps(found))


DIRECTORY, TARGET = "data/words", "test_bound_secrets"
COMMANDS = {
    "status": ("status", DIRECTORY),
    "list": ("list", "data", "--json"),
    "inspect": ("inspect", DIRECTORY),
    "state": ("state", DIRECTORY, "counts"),
    "history": ("history", DIRECTORY),
    "replay": ("replay", DIRECTORY, "--txid", "1", "--topology", TARGET),
    "kill": ("kill", DIRECTORY),
    "run": ("run", TARGET, "--engine", "local", "--data-dir", DIRECTORY, "--available-now"),
    "copy": ("ledger", "copy", DIRECTORY, "sqlite:other.db"),
    "recover": ("recover", DIRECTORY),
    "savepoints": ("savepoint", "list", DIRECTORY),
    "rewind": ("rewind", DIRECTORY, "--to-txid", "1", "--yes"),
}


def test_no_command_sends_the_password_where_a_directory_says(words: Path, listener: Listener, txstorm) -> None:
    assert txstorm(*COMMANDS["run"])[0] == 0
    planted(words / DIRECTORY, listener.hosts)
    for name, command in COMMANDS.items():
        code, shown = txstorm(*command)
        said = " ".join(shown.split())
        # A list goes on with the next directory; the others end as with other bad input.
        assert code == (0 if name == "list" else 2), (name, shown)
        assert f"is not sent to {listener.hosts}" in said, (name, shown)
        assert f"--ledger zookeeper:{listener.hosts}/words" in said, (name, shown)
        assert f"{AUTH_HOSTS}={listener.hosts}" in said, (name, shown)
        assert PASSWORD not in shown
    for read in (lambda: read_status(DIRECTORY), lambda: StateView(Path(DIRECTORY), "counts").to_pylist()):
        with pytest.raises(InputError, match="is not sent to"):
            read()
    # Another ledger is named, and the recorded one would be asked whether it was moved there.
    code, shown = txstorm("status", DIRECTORY, "--ledger", "zookeeper:zk1.example:2181/words")
    assert (code, f"is not sent to {listener.hosts}" in " ".join(shown.split())) == (2, True), shown
    assert (listener.connections, listener.heard) == (0, b"")


def test_the_listener_hears_the_password_where_it_is_named(words: Path, listener: Listener, txstorm) -> None:
    """The password is sent to a server that the operator named: the previous test would detect a leak."""
    assert txstorm(*COMMANDS["run"])[0] == 0
    planted(words / DIRECTORY, listener.hosts, zookeeper_patience=0.5)
    txstorm("status", DIRECTORY, "--ledger", f"zookeeper:{listener.hosts}/words")
    assert PASSWORD.encode() in listener.heard


def test_without_a_password_there_is_nothing_to_bind(words: Path, listener: Listener, txstorm, monkeypatch) -> None:
    assert txstorm(*COMMANDS["run"])[0] == 0
    monkeypatch.delenv(AUTH)
    for patience in (0.5, 10.0):  # the machine may be too busy for a short one
        planted(words / DIRECTORY, listener.hosts, zookeeper_connect_timeout=2 * patience, zookeeper_patience=patience)
        assert "is not sent to" not in txstorm("status", DIRECTORY)[1]
        if listener.connections:
            return
    pytest.fail("nothing has connected to the server that the directory names")


def test_who_names_the_servers_works_as_before(words: Path, zookeeper_server: ZooKeeper, txstorm, monkeypatch) -> None:
    hosts, _, chroot = zookeeper_server.new_chroot().partition("/")
    spec = f"zookeeper:{hosts}/{chroot}"
    assert txstorm(*COMMANDS["run"], "--ledger", spec)[0] == 0
    assert json.loads((words / DIRECTORY / "ledger.json").read_text())["ledger"] == spec
    code, shown = txstorm("status", DIRECTORY)
    assert (code, "is not sent to" in shown) == (2, True)
    for more, variable in [(("--ledger", spec), ""), ((), hosts), ((), f"zk9:1, {hosts.upper()}"), ((), "127.0.0.1")]:
        monkeypatch.setenv(AUTH_HOSTS, variable)
        for command in ("status", "state", "history", "inspect", "list"):
            code, shown = txstorm(*COMMANDS[command], *more)
            assert (code, "is not sent to" in shown) == (0, False), (command, variable, shown)
            assert "unreadable" not in shown
    monkeypatch.setenv(AUTH_HOSTS, "127.0.0.1:1,127.0.0.2,zk.example")
    assert txstorm("status", DIRECTORY)[0] == 2
    # Settings in the topology's code name the servers, too; a handle and readers in its process know them from there.
    monkeypatch.setenv(AUTH_HOSTS, "")
    monkeypatch.setattr(credentials, "_named_hosts", set())
    servers = {"zookeeper_servers": hosts, "zookeeper_root": zookeeper_server.new_chroot().removeprefix(hosts)}
    handle = ended(made(servers), "data/other")
    assert handle.state("counts").to_pylist() == [{"word": "a", "n": 2}, {"word": "b", "n": 1}]
    assert read_status("data/other")["committed_txid"] == handle.committed


@pytest.mark.slow
def test_the_password_is_sent_after_a_yes_at_a_terminal(words: Path, zookeeper_server: ZooKeeper, txstorm) -> None:
    hosts, _, chroot = zookeeper_server.new_chroot().partition("/")
    assert txstorm(*COMMANDS["run"], "--ledger", f"zookeeper:{hosts}/{chroot}")[0] == 0
    for answer, expected in [("y", 0), ("n", 2)]:
        code, shown = at_a_terminal(words, answer, "status", DIRECTORY)
        assert code == expected, shown
        assert f"its ledger is at {hosts}. Send the password of user 'owner' there? [y/N]" in shown
        assert PASSWORD not in shown


@pytest.mark.parametrize(
    ("uri", "sent"),
    [
        ("delta:/mnt/ledger", True),
        ("delta:s3://bucket/ledger", True),
        ("delta:abfss://c@account.dfs.core.windows.net/x", True),
        ("delta:https://other.example/ledger", False),
        ("delta:hdfs://other.example:9000/ledger", False),
        ("delta:lakefs://repo/branch", False),
    ],
)
def test_delta_ledgers_that_a_directory_names(words: Path, uri: str, sent: bool) -> None:
    spec = parse_ledger(uri)
    if sent:
        check_named(spec, words, None)
        return
    with pytest.raises(SecretRefused, match=r"ledger\.json: if it is right, add --ledger"):
        check_named(spec, words, None)
    named_ledger(uri)
    check_named(spec, words, None)


def test_tls_that_the_environment_asks_for_is_not_turned_off_by_a_directory(monkeypatch, words: Path) -> None:
    recorded = Settings(zookeeper_tls=False, zookeeper_check_hostname=False, zookeeper_ca="/data/words/ca.pem")
    spec = parse_ledger("zookeeper:zk1:2281,zk2/words")
    assert over_tls(recorded, spec) == recorded
    for hosts, authority in [("tls://zk1:2281,tls://zk2", ""), ("zk9,TLS://ZK2", "/etc/ca.pem")]:
        monkeypatch.setenv(AUTH_HOSTS, hosts)
        monkeypatch.setenv(CA, authority)
        used = over_tls(recorded, spec)
        assert (used.zookeeper_tls, used.zookeeper_check_hostname, used.zookeeper_ca) == (True, True, authority)
    monkeypatch.setenv(AUTH_HOSTS, "tls://zk1:2281,tls://zk2")
    check_named(spec, words, recorded)
