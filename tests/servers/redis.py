"""Redis servers, which sync every write to disk before they answer."""

import shutil
import socket
from pathlib import Path

from servers.cluster import Cluster, Ports, started
from servers.process import GuardedProcess, ServerError, ServerProcess

CONFIG = """\
bind 127.0.0.1
port {port}
dir {data}
daemonize no
set-proc-title no
save ""
appendonly yes
appendfsync always
"""


class Redis(Cluster):
    """One Redis server, or several independent ones, numbered from 0; optionally protected by a password."""

    def __init__(
        self, directory: Path, ports: list[Ports], *, password: str = "", process: type[ServerProcess] = GuardedProcess
    ) -> None:
        self.password = password
        servers = []
        for i, port in enumerate(server["port"] for server in ports):
            home = directory / f"server-{i}"
            (home / "data").mkdir(parents=True, exist_ok=True)
            config = CONFIG.format(port=port, data=home / "data")
            config += f"requirepass {password}\n" if password else ""
            (home / "redis.conf").write_text(config, encoding="utf-8")
            servers.append(process(f"Redis server {i}", [program(), str(home / "redis.conf")], home / "log"))
        super().__init__(directory, ports, servers)

    def conf(self, **pool: object) -> dict[str, object]:
        """Return the configuration of a state provider for server 0; `pool` adds keys to ``jedisPoolConfig``."""
        login = {"password": self.password} if self.password else {}
        return {"jedisPoolConfig": {"host": "127.0.0.1", "port": self.ports[0], **login, **pool}}

    def flush(self) -> None:
        with socket.create_connection(("127.0.0.1", self.ports[0]), timeout=10) as connection:
            connection.sendall(b"FLUSHALL\r\n")
            assert connection.recv(100) == b"+OK\r\n"

    def ready(self, i: int) -> bool:
        """Return whether server i answers; an answer that asks for a password counts."""
        try:
            with socket.create_connection(("127.0.0.1", self.ports[i]), timeout=2) as connection:
                connection.sendall(b"PING\r\n")
                answer = connection.recv(100)
        except OSError:
            return False
        return answer.startswith((b"+PONG", b"-NOAUTH"))


def program() -> str:
    """Return the path of redis-server; raise ServerError if it is not installed."""
    found = shutil.which("redis-server")
    if found is None:
        raise ServerError("redis-server is not on PATH: install it (scripts/test --install does)")
    return found


def start_redis(directory: Path, *, password: str = "") -> Redis:
    """Start a Redis server with its data in `directory`; return it when it is ready. It ends with this process."""
    return started(Redis(directory, Redis.pick_ports(1), password=password))
