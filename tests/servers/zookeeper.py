"""ZooKeeper servers, standalone or as an ensemble."""

import os
import socket
import uuid
from pathlib import Path

from servers import tls
from servers.cluster import Cluster, Ports, started
from servers.java import java_command, zookeeper_classpath
from servers.process import GuardedProcess, ServerProcess
from servers.tls import certificate

HEAP = "128m"

# Short ticks allow session timeouts of one second, and elections in less than that.
CONFIG = """\
tickTime=500
initLimit=20
syncLimit=10
minSessionTimeout=1000
maxSessionTimeout=60000
dataDir={data}
clientPort={port}
clientPortAddress=127.0.0.1
admin.enableServer=false
maxClientCnxns=0
4lw.commands.whitelist=srvr,mntr,cons
"""
# TLS on a separate port requires the Netty connection factory.
TLS_CONFIG = """\
serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory
secureClientPort={port}
secureClientPortAddress=127.0.0.1
ssl.clientAuth=none
ssl.keyStore.type=PKCS12
ssl.keyStore.location={keystore}
ssl.keyStore.password={password}
ssl.trustStore.type=PEM
ssl.trustStore.location={pem}
"""

WRITES = {1: "create", 2: "delete", 5: "set", 14: "transaction", 15: "create", 19: "create", 20: "delete", 21: "create"}


def is_write(request: bytes) -> bool:
    """Return whether `request` is a write, not a ping, read or watch; a filter for `LossyProxy.drop_answers`."""
    xid, operation = (int.from_bytes(request[i : i + 4], "big", signed=True) for i in (4, 8))
    return xid > 0 and operation in WRITES


class ZooKeeper(Cluster):
    """ZooKeeper ensemble; servers are numbered from 0, and server i has the id i + 1. TLS is optional (`encrypted`)."""

    PORTS = ("port", "peer", "vote", "tls")

    def __init__(
        self,
        directory: Path,
        ports: list[Ports],
        *,
        encrypted: bool = False,
        process: type[ServerProcess] = GuardedProcess,
        quick: bool = False,
    ) -> None:
        self._ports = ports
        self._encrypted = encrypted
        servers = []
        for i in range(len(ports)):
            home = directory / f"server-{i}"
            (home / "data").mkdir(parents=True, exist_ok=True)
            (home / "data" / "myid").write_text(f"{i + 1}\n", encoding="utf-8")
            (home / "zoo.cfg").write_text(self._config(i, home), encoding="utf-8")
            call = ["org.apache.zookeeper.server.quorum.QuorumPeerMain", str(home / "zoo.cfg")]
            command = java_command(zookeeper_classpath(), HEAP, home / "log4j2.properties", call, quick=quick)
            servers.append(process(f"ZooKeeper server {i}", command, home / "log"))
        super().__init__(directory, ports, servers)

    def _config(self, i: int, home: Path) -> str:
        lines = CONFIG.format(data=home / "data", port=self._ports[i]["port"])
        if len(self._ports) > 1:
            for number, server in enumerate(self._ports):
                lines += f"server.{number + 1}=127.0.0.1:{server['peer']}:{server['vote']}\n"
        if self._encrypted:
            own = certificate("zookeeper")
            stores = {"keystore": own.keystore, "pem": own.pem, "password": tls.PASSWORD}
            lines += TLS_CONFIG.format(port=self._ports[i]["tls"], **stores)
        return lines

    @property
    def tls_hosts(self) -> str:
        """Addresses of all servers for TLS clients, which must trust the certificate `ca`."""
        return ",".join(f"127.0.0.1:{server['tls']}" for server in self._ports)

    @property
    def ca(self) -> Path:
        """Path of the PEM certificate that TLS clients must trust."""
        return certificate("zookeeper").pem

    @property
    def hosts(self) -> str:
        """Addresses of all servers, as a ZooKeeper connection string."""
        return self.addresses

    def new_chroot(self) -> str:
        """Return ``HOSTS/CHROOT`` with a new unique chroot, which does not exist yet."""
        return f"{self.hosts}/test-{uuid.uuid4().hex[:12]}"

    def ready(self, i: int) -> bool:
        return bool(self.mode(i))

    def mode(self, i: int) -> str:
        """Return the role of server i: ``standalone``, ``leader`` or ``follower``; empty if it is not serving."""
        lines = self.ask(i, "srvr").splitlines()
        return next((line.removeprefix("Mode: ") for line in lines if line.startswith("Mode: ")), "")

    def leader(self) -> int:
        """Return the number of the leader; wait up to 30 s for an election, then raise ServerError."""
        self.wait(lambda: any(map(self._leads, range(len(self.ports)))), "a leader of the ensemble")
        return next(i for i in range(len(self.ports)) if self._leads(i))

    def _leads(self, i: int) -> bool:
        return self.mode(i) in ("leader", "standalone")

    def ask(self, i: int, word: str) -> str:
        """Return the response of server i to the four-letter command `word`; empty if the server is unreachable."""
        try:
            with socket.create_connection(("127.0.0.1", self.ports[i]), timeout=2) as connection:
                connection.sendall(word.encode())
                with connection.makefile(encoding="utf-8", errors="replace") as answer:
                    return answer.read()
        except OSError:
            return ""


def start_zookeeper(directory: Path, servers: int = 1, *, encrypted: bool = False, quick: bool = True) -> ZooKeeper:
    """Start a ZooKeeper ensemble with its data in `directory`; return it when all servers are ready.

    The servers end with this process. Existing data in the directory is reused if the number of servers is equal.
    If `encrypted`, they serve TLS at `tls_hosts`, in addition to `hosts`. For performance measurements set `quick` to
    False, so that the JIT compiler fully optimizes their code.
    """
    # In this process and its children, clients without credentials create nodes with open ACLs.
    os.environ.setdefault("TXSTORM_ZOOKEEPER_ACL", "open")
    return started(ZooKeeper(directory, ZooKeeper.pick_ports(servers), encrypted=encrypted, quick=quick))
