"""Commands of txstorm in the process of a test, and programs that import from the checkout."""

import io
import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from called import ask
from programs import ROOT, Program, loaded


class Ended(NamedTuple):
    """Exit code and output of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The last line of its output, parsed."""
        return json.loads(self.out.splitlines()[-1])

    @property
    def message(self) -> str:
        """Its error message on one line, from either form of output."""
        return " ".join((self.err or self.json["error"]["message"]).split())


class Commands:
    """Runs commands of txstorm in this process, each of which may read a text from its standard input."""

    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self._capsys, self._monkeypatch = capsys, monkeypatch

    def __call__(self, *arguments: Any, text: str = "") -> Ended:
        from txstorm.cli.main import execute

        self._monkeypatch.setattr("sys.stdin", io.StringIO(text))
        self._capsys.readouterr()
        return Ended(execute([str(one) for one in arguments]), *self._capsys.readouterr())

    def printed(self, *arguments: Any, text: str = "") -> str:
        """Run a command that must succeed; return its output."""
        ended = self(*arguments, text=text)
        assert ended.code == 0, ended.err
        return ended.out

    def json(self, *arguments: Any) -> Any:
        """Run a command that must succeed with ``--json``; return its result."""
        return json.loads(self.printed(*arguments, "--json").splitlines()[-1])

    def refused(self, *arguments: Any) -> str:
        """Run a command that must end with exit code 2 and no output but an error; return its message on one line."""
        ended = self(*arguments)
        assert ended.code == 2, ended
        assert "--json" in arguments or ended.out == ""
        return ended.message


def run_program(*arguments: Any, timeout: float = 240, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run ``python ARGUMENTS`` to completion; options as for `programs.Programs.start`, `env` in addition to ours."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **options.pop("env", {})}
    return loaded().run(*arguments, timeout=timeout, env=environment, **options)


def printed_by(*arguments: Any, **options: Any) -> str:
    """Run ``python ARGUMENTS``, which must succeed; return its output."""
    done = run_program(*arguments, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def at_a_terminal(place: Path, answer: str, *arguments: str) -> tuple[int, str]:
    """Run the txstorm command in the directory `place` on a pseudo-terminal, typing `answer`; return the exit code and the terminal's output."""
    terminal, side = os.openpty()
    with open(terminal, "r+b", buffering=0) as screen:
        env = {**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "500"}
        answers = ask(str(loaded().socket), ["-m", "txstorm", *arguments], str(place), env, [side] * 3).makefile()
        os.close(side)
        screen.write(f"{answer}\n".encode())
        shown = b""
        try:
            while found := screen.read(4096):
                shown += found
        except OSError:
            pass  # the other end is closed: the process has exited
        _pid, code = map(int, answers)
        return code, shown.decode()


@contextmanager
def serving(*arguments: Any, **environment: str) -> Iterator[tuple[dict[str, Any], Program]]:
    """Run a command that serves; yield what it prints when it listens, parsed, and its process."""
    command = ["-m", "txstorm", *arguments, "--json"]
    process = loaded().start(*command, env={**os.environ, "PYTHONPATH": str(ROOT), **environment})
    try:
        until = time.monotonic() + 60
        while "\n" not in process.printed:
            assert process.poll() is None, process.complained
            assert time.monotonic() < until
            time.sleep(0.02)
        yield json.loads(process.printed), process
    finally:
        process.kill()
        process.wait()
