"""``txstorm store-server``: what it prints, the free port, tokens, and what it refuses."""

import shutil
import signal
import socket
from pathlib import Path

import pytest
from commands import Commands, serving
from servers.running import start_redis

from txstorm.joins import RestStore, StoreRow


@pytest.mark.integration
@pytest.mark.parametrize(("stop", "given"), [(signal.SIGTERM, "option"), (signal.SIGINT, "variable")])
def test_a_server_on_a_free_port_with_a_token(stop: signal.Signals, given: str) -> None:
    """A10: one line of JSON when it listens; exit code 0 after a signal."""
    token = ["--token", "secret"] if given == "option" else []
    environment = {} if token else {"TXSTORM_STORE_TOKEN": "secret"}
    command = ["store-server", "--store", "memory", "--port", "0", *token]
    with serving(*command, **environment) as (line, server):
        assert (line["store"], line["token"]) == ("memory", True)
        store = RestStore(line["url"], token="secret")
        store.put_many([StoreRow("a", 1, 1, {})])
        assert list(store.get_many(["a"], None, None)["a"]) == [StoreRow("a", 1, 1, {})]
        server.send_signal(stop)
        out, err = server.communicate(timeout=60)
        assert (server.returncode, out.count("\n"), err) == (0, 1, "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--store", "disk"], "--store: got 'disk', expected memory or redis:URL"),
        (["--store", "redis:redis://:hunter2@h:x"], "Redis: URL 'redis://…@h:x'"),
        (["--store", "redis:"], "Redis: URL"),
        (["--store", "redis:redis://h", "--prefix", "a b"], "prefix 'a b': expected ASCII text"),
        (["--store", "memory", "--host", "0.0.0.0"], "can be reached from other machines: give a token"),
        (["--store", "memory", "--host", "::"], "can be reached from other machines: give a token"),
        (["--store", "memory", "--token", "a\nb"], "the token has spaces around it, or characters"),
        (["--store", "memory", "--port", "70000"], "'--port'"),
        (["--store", "memory", "--max-body", "10"], "'--max-body'"),
        (["--store", "memory", "--host", "256.1.1.1", "--token", "t"], "cannot listen on 256.1.1.1:8080"),
        ([], "'--store'"),
    ],
)
def test_what_is_refused(command: Commands, arguments: list[str], message: str) -> None:
    said = command.refused("store-server", *arguments, "--json")
    assert message in said
    assert "hunter" not in said


@pytest.mark.integration
def test_a_port_that_is_taken(command: Commands) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = command.refused("store-server", "--store", "memory", "--port", port, "--json")
    assert f"cannot listen on 127.0.0.1:{port}" in said
    assert "choose another --port" in said


@pytest.mark.integration
def test_credentials_that_redis_rejects_end_the_command(command: Commands, tmp_path: Path) -> None:
    if shutil.which("redis-server") is None:
        pytest.skip("scripts/redis --install installs it")
    with start_redis(tmp_path, password="hunter2") as server:
        store = f"redis:redis://:hunter3@{server.address()}/0"
        said = command.refused("store-server", "--store", store, "--port", "0", "--json")
    assert ("rejects the credentials" in said, "hunter" in said) == (True, False), said
