"""Runs the code blocks of one Markdown file, in order: ``docs_blocks.py FILE [--spark] [--instead OLD=NEW]...``.

- ```` ```python ````: executed; the blocks of a file share their names. The value of a last expression is shown, as a
  notebook shows it. After ``<!-- spark -->`` the block runs with ``--spark`` only.
- ```` ```text ```` right after it: what the block prints.
- ```` ```console ````: lines with ``$`` are run by bash, with `txstorm` and `python` on the PATH; the others are what they print.
- Other languages (``sh``) are not run.

Output is compared loosely: runs of blanks and rules count as one, ``…`` stands for anything, and after
``<!-- numbers vary -->`` every number and digest equals every other. ``--instead`` replaces text in the blocks, such
as the addresses of servers.

The current directory is an empty one with a link to `jobs`, so paths work as in a checkout.
"""

import argparse
import ast
import contextlib
import faulthandler
import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"```(\w*)\s*$")
SHOWN = 4000
LONGEST = 240  # seconds; a block that hangs shows where
COMMENT = re.compile(r"<!-- (spark|numbers vary) -->$")


@dataclass(frozen=True)
class Block:
    """One fenced block: `line` is the number of its first line of text; `marks` are the comments above it."""

    path: Path
    line: int
    language: str
    text: str
    marks: frozenset[str]
    output: str | None = None
    varies: bool = False

    @property
    def place(self) -> str:
        return f"{self.path}:{self.line}"

    @property
    def spark(self) -> bool:
        return "spark" in self.marks


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(path: Path) -> list[Block]:
    """Return the python and console blocks of a file, each with the output that follows it."""
    found: list[Block] = []
    for block, adjacent in _fenced(path):
        if block.language == "text" and adjacent and found and found[-1].output is None:
            found[-1] = replace(found[-1], output=block.text, varies="numbers vary" in block.marks)
        elif block.language in ("python", "console"):
            found.append(block)
    return found


def _fenced(path: Path) -> Iterator[tuple[Block, bool]]:
    """Yield all fenced blocks, and whether only marks separate each from the previous one."""
    lines = path.read_text(encoding="utf-8").splitlines()
    marks: set[str] = set()
    adjacent = False
    number = 0
    while number < len(lines):
        line = lines[number].strip()
        number += 1
        if fence := FENCE.match(line):
            first = number
            while lines[number].strip() != "```":
                number += 1
            yield Block(path, first + 1, fence[1], "\n".join(lines[first:number]), frozenset(marks)), adjacent
            number += 1
            marks, adjacent = set(), True
        elif comment := COMMENT.match(line):
            marks.add(comment[1])
        elif line:
            marks, adjacent = set(), False


def difference(expected: str, got: str, *, varies: bool) -> str | None:
    """Return the difference between the expected and the actual output; None if there is none."""
    pattern = "\n".join(_pattern(line, varies=varies) for line in _lines(expected))
    # A line of its own that is … stands for any number of lines, also none.
    pattern = re.sub(r"(?:^|\n)ANYLINES(?=\n|$)", lambda _: r"(?:(?:\A|\n).*)*?", pattern)
    if re.fullmatch(pattern, "\n".join(_normal(line, varies=varies) for line in _lines(got))):
        return None
    return f"expected\n{expected}\n--- got\n{got[:SHOWN]}{'…' * (len(got) > SHOWN)}"


def _lines(text: str) -> list[str]:
    return [line for line in (line.strip() for line in text.splitlines()) if line]


def _normal(line: str, *, varies: bool) -> str:
    line = re.sub(r"\s+", " ", re.sub(r"([─═━-])\1+", r"\1", line))
    return re.sub(r"\b[0-9a-f]{12,}\b|\d[\d.,:]*", "0", line) if varies else line


def _pattern(line: str, *, varies: bool) -> str:
    if line == "…":
        return "ANYLINES"
    return ".*".join(re.escape(part) for part in _normal(line, varies=varies).split("…"))


class Runner:
    """Runs the blocks of one file in a shared namespace."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {"__name__": "__main__"}
        self.faults: list[str] = []

    def run(self, block: Block) -> None:
        """Run a block, passing its exceptions on, and record differences in its output."""
        if block.language == "console":
            self._run_console(block)
            return
        shown = self._run_python(block)
        if block.output is not None:
            self._compare(block, block.output, shown, varies=block.varies)

    def _run_python(self, block: Block) -> str:
        tree = ast.parse("\n" * (block.line - 1) + block.text, block.place)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(tree, block.place, "exec"), self.names)
            if last is not None:
                value = eval(compile(ast.Expression(last.value), block.place, "eval"), self.names)
                if value is not None:
                    print(value)
        return out.getvalue()

    def _run_console(self, block: Block) -> None:
        commands = _commands(block.text)
        script = "\n".join(f"{command}\n__status=$?; echo; echo @@@; (exit $__status)" for command, _ in commands)
        done = subprocess.run(
            ["bash", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        shown = done.stdout.split("@@@\n")
        for (command, expected), got in zip(commands, shown, strict=False):
            varies = "numbers vary" in block.marks
            self._compare(block, expected, got, varies=varies, what=f"$ {command}\n")
        if len(shown) < len(commands):
            self.faults.append(f"{block.place}: the shell ended early\n{done.stdout}")

    def _compare(self, block: Block, expected: str, got: str, *, varies: bool, what: str = "") -> None:
        if fault := difference(expected, got, varies=varies):
            self.faults.append(f"{block.place}: {what}{fault}")

    def close(self) -> None:
        from txstorm.runtime.handle import RunHandle

        for value in self.names.values():
            if isinstance(value, RunHandle):
                value.stop()


def _commands(text: str) -> list[tuple[str, str]]:
    """Return (command, expected output) of a console block; a backslash continues a command."""
    found: list[tuple[str, list[str]]] = []
    for line in text.replace("\\\n", "").splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif found:
            found[-1][1].append(line)
    return [(command, "\n".join(output)) for command, output in found]


@contextlib.contextmanager
def checkout(directory: Path, programs_socket: str | None) -> Iterator[None]:
    """Context manager that makes `directory` look like a checkout whose `txstorm` is on the PATH, and goes there.

    If a fork server is given (see `programs`), txstorm and the jobs are run through it.
    """
    place, environment, path = Path.cwd(), dict(os.environ), list(sys.path)
    _prepare(directory, programs_socket)
    try:
        yield
    finally:
        os.chdir(place)
        os.environ.clear()
        os.environ.update(environment)
        sys.path[:] = path


def _prepare(directory: Path, programs_socket: str | None) -> None:
    (directory / "jobs").symlink_to(ROOT / "jobs")
    programs = directory / ".venv" / "bin"
    programs.mkdir(parents=True)
    python, submit = (shlex.quote(str(one)) for one in (sys.executable, Path(sys.executable).with_name("spark-submit")))
    fast = python
    if programs_socket:
        fast = shlex.join([sys.executable, "-I", "-S", str(ROOT / "tests" / "helpers" / "called.py"), programs_socket])
    either = f'case "$1" in jobs/*) exec {fast} "$@" ;; *) exec {python} "$@" ;; esac'
    calls = {
        "python3": either,
        "txstorm": f'exec {fast} -m txstorm "$@"',
        "python": either,
        "spark-submit": f'exec {submit} "$@"',
    }
    for program, call in calls.items():
        shim = programs / program
        shim.write_text(f"#!/bin/sh\n{call}\n", encoding="utf-8")
        shim.chmod(0o755)
    os.environ["PATH"] = f"{programs}{os.pathsep}{os.environ['PATH']}"
    os.environ["PYTHONPATH"] = str(ROOT)
    os.environ.update(COLUMNS="130", NO_COLOR="1", TERM="dumb")
    os.chdir(directory)
    sys.path[:0] = ["", str(ROOT)]


def run_file(path: Path, *, spark: bool, instead: Sequence[tuple[str, str]] = ()) -> list[str]:
    runner = Runner()
    try:
        for block in blocks(path):
            if spark or not block.spark:
                runner.run(replaced(block, instead))
    finally:
        runner.close()
    return runner.faults


def replaced(block: Block, instead: Sequence[tuple[str, str]]) -> Block:
    text, output = block.text, block.output
    for old, new in instead:
        text, output = text.replace(old, new), output and output.replace(old, new)
    return replace(block, text=text, output=output)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one file in a temporary directory; return 1 if an output differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--spark", action="store_true", help="run the blocks that need Spark, too")
    parser.add_argument("--directory", type=Path, help="an empty one to run in (default: a temporary one)")
    parser.add_argument("--programs", metavar="SOCKET", help="of a process that forks programs")
    parser.add_argument("--instead", action="append", default=[], metavar="OLD=NEW", help="replace text in the blocks")
    chosen = parser.parse_args(arguments)
    instead = [tuple(one.split("=", 1)) for one in chosen.instead]
    path = chosen.file.resolve()
    faulthandler.dump_traceback_later(LONGEST, exit=True, file=sys.__stderr__)
    with contextlib.ExitStack() as left:
        directory = chosen.directory or Path(left.enter_context(tempfile.TemporaryDirectory()))
        left.enter_context(checkout(directory, chosen.programs))
        faults = run_file(path, spark=chosen.spark, instead=instead)
    faulthandler.cancel_dump_traceback_later()
    if faults:
        print("\n\n".join(faults))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
