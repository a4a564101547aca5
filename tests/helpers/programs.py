"""Fork server for tests: runs Python programs in processes forked from one that has txstorm loaded.

Loading txstorm takes a second of processor time, a fork 20 ms. A program finds everything as it would in a new
interpreter: its arguments, current directory, environment, Python path, files and default signal handlers, and it exits
as the interpreter does, except that what is left in memory is not torn down: that would copy every page of it, and
take as long as a small run. Its imports are already loaded, though, so tests of imports start a new Python process
instead.

``programs.py SOCKET`` is the process that forks; it ends when its standard input closes, and kills any programs that
are still running.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from called import ask

ROOT = Path(__file__).resolve().parents[2]
LOADED = (
    "pandas",  # pyarrow imports it for its first array
    "txstorm.cli.execute",
    "txstorm.cli.output",
    "txstorm.cli.target",
    "txstorm.engine.local",
    "txstorm.operations.lifecycle",
    "txstorm.operations.status",
    "txstorm.results.spark_views",
    "txstorm.spouts.files.spout",
    "txstorm.web.store_server",
    "pyarrow.acero",
    *(f"scenarios.{name}" for name in ("words", "grid", "stateful", "shelf")),
)
OWN = [str(ROOT), str(ROOT / "tests/recovery")]
"""Python path of the process that forks, for the modules that it loads."""


class Programs:
    """Starts programs as forks of one process that has txstorm loaded; socket and output are in `directory`."""

    def __init__(self, directory: Path) -> None:
        self.socket = directory / "socket"
        self._directory = directory
        self._started = 0
        self._process = subprocess.Popen(
            [sys.executable, __file__, self.socket],
            # The seed that the command line starts with: a fork would be replaced by a program of its own else.
            env={**os.environ, "PYTHONPATH": os.pathsep.join(OWN), "PYTHONHASHSEED": "0"},
            cwd=directory,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # A shell starts its background jobs with Ctrl-C ignored, and their children would inherit that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline(), "the process that forks did not start"

    def start(
        self,
        *arguments: Any,
        cwd: str | Path | None = None,
        env: Mapping[str, str] | None = None,
        stdin: str = "",
        output: Path | None = None,
        merged: bool = False,
        session: bool = False,
    ) -> Program:
        """Start ``python ARGUMENTS`` as `subprocess.Popen` does, in the caller's environment if none is given.

        `merged`: standard error goes to standard output, and that to the file `output`, or to a temporary one.
        `session`: it starts a new session, whose id is its pid.
        """
        self._started += 1
        home = self._directory / str(self._started)
        given, out, err = home.with_suffix(".in"), output or home.with_suffix(".out"), home.with_suffix(".err")
        given.write_text(stdin, encoding="utf-8")
        with given.open("rb") as first, out.open("wb") as second, err.open("wb") as third:
            files = [first.fileno(), second.fileno(), (second if merged else third).fileno()]
            asked = os.environ if env is None else env
            argv = [str(one) for one in arguments]
            connection = ask(str(self.socket), argv, str(cwd or Path.cwd()), asked, files, session=session)
        return Program(connection, argv, out, err)

    def run(self, *arguments: Any, timeout: float = 240, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a program to completion, as `subprocess.run` does; arguments as for `start`."""
        program = self.start(*arguments, **options)
        try:
            output, errors = program.communicate(timeout)
        finally:
            program.kill()
        return subprocess.CompletedProcess(program.args, program.returncode, output, errors)

    def close(self) -> None:
        """End the fork server and the programs that are still running; remove their output."""
        self._process.communicate(b"")
        shutil.rmtree(self._directory)


@functools.cache
def loaded() -> Programs:
    """Return the fork server of this test process, started at the first call; `close_loaded` ends it."""
    return Programs(Path(tempfile.mkdtemp(prefix="txstorm-programs-")))


def close_loaded() -> None:
    """End the fork server of `loaded` and its programs, if it was started."""
    if loaded.cache_info().currsize:
        loaded().close()
        loaded.cache_clear()


class Program:
    """A started program, running or ended, with the interface of a `subprocess.Popen` with pipes."""

    def __init__(self, connection: socket.socket, args: list[str], out: Path, err: Path) -> None:
        self.args = args
        self.returncode: int | None = None
        self._connection = connection
        self._answers = connection.makefile("r")
        self.pid = int(self._answers.readline())
        self._out, self._err = out, err

    @property
    def printed(self) -> str:
        """Standard output so far."""
        return self._out.read_text(encoding="utf-8")

    @property
    def complained(self) -> str:
        """Standard error so far."""
        return self._err.read_text(encoding="utf-8") if self._err.exists() else ""

    def poll(self) -> int | None:
        """Return the exit status, negative for a signal; None while the program runs."""
        if self.returncode is None and select.select([self._connection], [], [], 0)[0]:
            self._read()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the program ends; return its exit status. Raises `subprocess.TimeoutExpired`."""
        if self.returncode is None:
            if not select.select([self._connection], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            self._read()
        assert self.returncode is not None
        return self.returncode

    def _read(self) -> None:
        self.returncode = int(self._answers.readline())
        self._connection.close()

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait until the program ends; return its standard output and standard error."""
        self.wait(timeout)
        return self.printed, self.complained

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def serve(address: Path) -> tuple[dict[str, Any], list[int]]:
    """Fork a child for every request; return in the children only, with their request and file descriptors."""
    import gc
    from importlib import import_module

    for name in LOADED:
        import_module(name)
    gc.freeze()
    wakes, wake = os.pipe()
    for end in (wakes, wake):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(address))
    listener.listen(64)
    print("ready", flush=True)
    living: dict[int, socket.socket] = {}
    while True:
        ready, _, _ = select.select([0, wakes, listener], [], [])
        if wakes in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(wakes, 4096)
            _reap(living)
        if listener in ready:
            connection, _ = listener.accept()
            request, files = _received(connection)
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for one in (listener, connection, *living.values()):
                    one.close()
                return request, files
            for file in files:
                os.close(file)
            living[pid] = connection
            connection.sendall(f"{pid}\n".encode())
        if 0 in ready:
            break
    for pid in living:
        os.kill(pid, signal.SIGKILL)
    os._exit(0)


def _received(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    size, files, _, _ = socket.recv_fds(connection, 4, 3)
    wanted = int.from_bytes(size, "big")
    data = b""
    while len(data) < wanted:
        data += connection.recv(wanted - len(data))
    return json.loads(data), files


def _reap(living: dict[int, socket.socket]) -> None:
    """Reap ended children and send their exit statuses to the clients that started them."""
    while living:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        connection = living.pop(pid)
        with contextlib.suppress(BrokenPipeError):  # nobody waits for it any more
            connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
        connection.close()


def become(request: Mapping[str, Any], files: Sequence[int]) -> None:
    """Turn this forked child into the program: set its files, directory, environment and path, then run it."""
    import random

    from txstorm import faults

    if request["session"]:
        os.setsid()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    # Those there are know what kind of files the loaded process has: whether one can seek in them.
    sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", closefd=False)
    sys.stdout = sys.__stdout__ = open(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = sys.__stderr__ = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False, buffering=1)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    time.tzset()
    random.seed()
    faults.arm(os.environ.get("TXSTORM_FAULT", ""))
    faults._trace = os.environ.get("TXSTORM_FAULT_TRACE")
    own = [os.path.abspath(one) for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one]
    base = [one for one in sys.path if one not in OWN]
    sys.path[:] = [*own, *base]
    run_as_main(request["arguments"])


def run_as_main(arguments: Sequence[str]) -> None:
    """Run ``python ARGUMENTS`` as the main module of this process, with its arguments and first entry of the path."""
    import runpy

    safe = arguments[:1] == ["-P"]
    kind, *rest = arguments[safe:]
    first = {"-m": os.getcwd(), "-c": ""}.get(kind, os.path.dirname(os.path.abspath(kind)))
    sys.path[:] = [*([] if safe else [first]), *sys.path]
    if kind == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.argv = ["-c", *rest[1:]]
        sys.modules["__main__"] = main = ModuleType("__main__")
        exec(compile(rest[0], "<string>", "exec"), vars(main))
    else:
        sys.argv = [kind, *rest]
        runpy.run_path(kind, run_name="__main__")


def end(main: Callable[[], None]) -> NoReturn:
    """Call `main` and end the process with its exit status: wait for its threads, run its hooks, flush its output."""
    status, interrupted = 0, False
    try:
        main()
    except SystemExit as raised:
        if raised.code is not None and not isinstance(raised.code, int):
            print(raised.code, file=sys.stderr)
        status = int(raised.code or 0) & 0xFF if isinstance(raised.code, int | None) else 1
    except BaseException as error:  # noqa: BLE001 - printed as by the interpreter
        sys.excepthook(type(error), error, error.__traceback__)
        status, interrupted = 1, isinstance(error, KeyboardInterrupt)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for file in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            file.flush()
    if interrupted:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(status)


if __name__ == "__main__":
    request = serve(Path(sys.argv[1]))
    end(lambda: become(*request))
