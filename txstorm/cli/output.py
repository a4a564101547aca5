r"""Output of commands: results to standard output; progress, errors and the log to standard error.

Records, file names and messages of user code may contain control characters, which a terminal would obey, or characters
that reorder text (bidirectional controls). They are always written escaped (``\x1b``), in JSON as JSON escapes them.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import shlex
import sys
import traceback
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.logging import RichHandler
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

from txstorm.cli.tracebacks import without_internals
from txstorm.errors import ConfigurationError, KilledError, TopologyError, TxstormError
from txstorm.masks import masked_text

WIDE = 1 << 20
INTERRUPTED = 130
_CONTROLS = "\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069\\ud800-\\udfff"
"""Escaped characters: C0 except tab and line feed, DEL, C1, changes of text direction, line ends, lone surrogates."""
_UNSAFE = re.compile(f"[{_CONTROLS}]")
_UNSAFE_IN_LINE = re.compile(f"[\\t\\n{_CONTROLS}]")


class Interrupted(Exception):
    """A signal ended the command.

    Attributes:
        run: the result of the run so far.
    """

    exit_code = INTERRUPTED

    def __init__(self, message: str = "interrupted", run: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.run = run


def escaped(text: str, *, one_line: bool = False) -> str:
    """Return `text` with control characters escaped, including tabs and line feeds if `one_line`."""
    return (_UNSAFE_IN_LINE if one_line else _UNSAFE).sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return {9: "\\t", 10: "\\n", 13: "\\r"}.get(code) or (f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}")


class _SafeConsole(Console):
    """Console that escapes control characters in everything printed, including the live table and the log."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render `renderable` and escape the control characters in its segments."""
        for segment in super().render(renderable, options):
            if segment.control or not _UNSAFE.search(segment.text):
                yield segment
            else:
                yield Segment(escaped(segment.text), segment.style)


def stdout() -> Console:
    """Return a console on standard output; if that is not a terminal, lines are neither cut nor folded."""
    return _SafeConsole(width=None if sys.stdout.isatty() else WIDE, highlight=False, markup=False)


def stderr() -> Console:
    """Return a console on standard error; if that is not a terminal, lines are neither cut nor folded."""
    width = None if sys.stderr.isatty() else WIDE
    return _SafeConsole(stderr=True, width=width, highlight=False, markup=False)


def shell_command(words: Iterable[str]) -> str:
    """Join `words` into a command to paste into a shell: quoted if necessary, control characters escaped."""
    return " ".join(shlex.quote(word) if word.isprintable() else f"$'{_escaped(word)}'" for word in words)


def _escaped(word: str) -> str:
    """Escape `word` for use between the quotes of ``$'…'``."""

    def one(char: str) -> str:
        if char in "\\'":
            return f"\\{char}"
        if char.isprintable():
            return char
        return "".join(f"\\x{byte:02x}" for byte in char.encode("utf-8", "surrogateescape"))

    return "".join(map(one, word))


def confirmed(question: str) -> bool:
    """Ask the user a yes-no question; return False if there is no terminal."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    shown = "".join(one if one.isprintable() or one == "\n" else repr(one)[1:-1] for one in question)
    sys.stderr.write(f"{shown} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def print_text(text: str) -> None:
    """Print `text` to standard output, escaped, with its line breaks."""
    text = escaped(text)
    sys.stdout.write(text if text.endswith("\n") else text + "\n")
    sys.stdout.flush()


def print_json(document: Mapping[str, Any]) -> None:
    """Print `document` to standard output as one line of JSON."""
    print_json_text(json.dumps(document, ensure_ascii=False, default=str))


def print_json_text(text: str) -> None:
    r"""Print JSON, escaping even those control characters that JSON may contain unescaped (such as ``\u009b``)."""
    print_text(_UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text))


def grid(titles: Sequence[str] | None, rows: Iterable[Sequence[str]], right: Sequence[str] = ()) -> Table:
    """Build a table without ruled lines: with column titles or, if `titles` is None, with names and values.

    `right`: titles of the right-aligned columns.
    """
    made = PlainTable(
        box=None, pad_edge=False, show_header=titles is not None, header_style="dim", padding=(0, 2, 0, 0)
    )
    for title in titles or ("name", "value"):
        style = "dim" if titles is None and title == "name" else None
        made.add_column(
            escaped(title, one_line=True), justify="right" if title in right else "left", overflow="fold", style=style
        )
    for row in rows:
        made.add_row(*(Text(escaped(cell, one_line=True)) for cell in row))
    return made


def exit_code_of(error: BaseException) -> int:
    """Return the exit code for `error`: its attribute `exit_code`, or 1."""
    return int(getattr(error, "exit_code", 1))


def error_document(error: BaseException, run: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return ``{"error": {"type", "message", "exit_code", …}}``, with the topology's faults and the result so far."""
    about: dict[str, Any] = {
        "type": type(error).__name__,
        "message": masked_text(str(error)) or type(error).__name__,
        "exit_code": exit_code_of(error),
    }
    if isinstance(error, TopologyError | ConfigurationError):
        about["faults"] = [
            {**one, "message": masked_text(one["message"])} if isinstance(one, dict) else masked_text(one)
            for one in error.faults
        ]
    if run is not None:
        about["run"] = dict(run)
    return {"error": about}


def report(error: BaseException, *, as_json: bool, debug: bool, run: Mapping[str, Any] | None = None) -> int:
    """Report `error` to the user and return the exit code; stack frames of txstorm are shown only with `debug`."""
    if isinstance(error, KeyboardInterrupt):
        error = Interrupted()
    with contextlib.suppress(OSError):
        sys.stdout.flush()  # output of user code must precede the error if both have the same destination
    console = stderr()
    for text in _error_texts(error, debug=debug):
        console.print(text, soft_wrap=True)
    if as_json:
        print_json(error_document(error, run))
    return exit_code_of(error)


def _error_texts(error: BaseException, *, debug: bool) -> list[Text]:
    if isinstance(error, Interrupted | KilledError):
        return [Text(escaped(str(error)))]
    notes = masked_text("\n".join(getattr(error, "__notes__", ())))
    if debug:
        trace = masked_text("".join(traceback.format_exception(error)).rstrip())
        return [Text(escaped(trace)), _headline(str(error))]
    if isinstance(error, TxstormError):
        trace = without_internals(notes).rstrip()
        return [_headline(str(error)), *([Text(escaped(trace), "dim")] if trace else [])]
    unexpected = (
        f"txstorm itself failed with {type(error).__name__}: {error}; run it again with --log-level debug for the "
        "trace, and report it"
    )
    return [_headline(unexpected)]


def _headline(message: str) -> Text:
    return Text.assemble(("error: ", "bold red"), escaped(masked_text(message)))


_LINE = "%(message)s"
FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


class _Escaping(logging.Formatter):
    """Log formatter that hides secrets and escapes control characters: messages quote users, files and servers."""

    def format(self, record: logging.LogRecord) -> str:
        """Format `record`, hide its secrets and escape its control characters."""
        return escaped(masked_text(super().format(record)))


def log_to(console: Console, level: str) -> None:
    """Log records of ``txstorm`` at `level` and above to `console`, above the live table if there is one."""
    logger = logging.getLogger("txstorm")
    logger.setLevel(level.upper())
    handler: logging.Handler
    if console.is_terminal:
        handler = RichHandler(console=console, show_path=False, log_time_format="%H:%M:%S")
        handler.setFormatter(_Escaping(_LINE))
    else:
        handler = logging.StreamHandler(console.file)
        handler.setFormatter(_Escaping(FORMAT))
    for old in list(logger.handlers):
        if not isinstance(old, logging.NullHandler):
            logger.removeHandler(old)
    logger.addHandler(handler)


ALIGNED = 60
"""Width in characters up to which a cell widens its column in a file or pipe, so that one long value does not widen
all other rows."""


class PlainTable(Table):
    """A text table that other programs can parse when it is written to a file or pipe."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render like `Table` in a terminal, and as one line per row elsewhere."""
        if console.is_terminal:
            yield from super().__rich_console__(console, options)
            return
        columns = [self._texts(column) for column in self.columns]
        widths = [max((one for one in map(cell_len, texts) if one <= ALIGNED), default=0) for texts in columns]
        for cells in zip(*columns, strict=True):
            line = "  ".join(map(_aligned, cells, widths, self.columns))
            yield Segment(f"{line.rstrip()}\n")

    def _texts(self, column: Column) -> list[str]:
        head = [_plain(column.header)] if self.show_header else []
        return [*head, *map(_plain, column.cells)]


def _plain(cell: RenderableType) -> str:
    return " ".join((cell.plain if isinstance(cell, Text) else str(cell)).split("\n"))


def _aligned(text: str, width: int, column: Column) -> str:
    blanks = " " * (width - cell_len(text))
    return blanks + text if column.justify == "right" else text + blanks
