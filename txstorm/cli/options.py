"""Arguments and options shared by several commands, the enumerations of their values, and the form of a result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, NamedTuple

import typer


class EngineName(StrEnum):
    """Engine that runs the processing phase."""

    spark = "spark"
    local = "local"


class LogLevel(StrEnum):
    """Lowest level of log messages from txstorm shown on standard error."""

    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"


class Format(StrEnum):
    """Output format of ``txstorm describe``."""

    text = "text"
    mermaid = "mermaid"
    dot = "dot"
    json = "json"
    svg = "svg"


Target = Annotated[
    str,
    typer.Argument(
        metavar="MODULE",
        show_default=False,
        help="MODULE, MODULE:ATTRIBUTE or MODULE:FACTORY(ARGUMENTS). The attribute defaults to 'topology'. "
        "The current directory is searched first. ARGUMENTS are Python literals: they are parsed, never evaluated. "
        "Or FILE.toml, a pipeline without code: see txstorm example --pipeline.",
    ),
]
PrintPython = Annotated[
    bool, typer.Option("--print-python", help="Of a pipeline: print the same as a Python program, and end.")
]
DataDir = Annotated[
    str,
    typer.Argument(metavar="DATA_DIR", show_default=False, help="The data directory, such as txstorm-data/word-count."),
]
Ledger = Annotated[
    str | None,
    typer.Option(
        metavar="SPEC",
        show_default="the one recorded in DATA_DIR",
        help="The ledger: sqlite:PATH, zookeeper:HOSTS/CHROOT, delta:URI or memory.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="End standard output with one line of JSON, even after an error.")]
Txid = Annotated[
    int | None, typer.Option(metavar="N", help="As of this transaction.", show_default="the last committed")
]
Code = Annotated[
    str | None,
    typer.Option(
        metavar="MODULE:ATTRIBUTE",
        show_default="as recorded, once you confirm it at a terminal",
        help="The code, in the form of txstorm run.",
    ),
]
AllowHost = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        show_default=False,
        help="A host name by which requests may call a server on this machine, besides localhost and its address, such "
        "as that of a proxy before it; may be repeated.",
    ),
]


def at_ledger(data_dir: str, ledger: str | None) -> str:
    """Return `data_dir`; raise `InputError` if `ledger` is given but the topology uses a different ledger."""
    if ledger is not None:
        from txstorm.operations.ledger_choice import check_ledger

        check_ledger(data_dir, ledger)
    return data_dir


class Grid(NamedTuple):
    """A table in a result: see `txstorm.cli.output.grid`."""

    titles: Sequence[str] | None
    rows: Iterable[Sequence[str]]
    right: Sequence[str] = ()


class Line(NamedTuple):
    """A line of a result with a style of its own; `aside`: on standard error."""

    text: str
    style: str = "dim"
    aside: bool = False


def show(document: Mapping[str, Any], *parts: str | Grid | Line, as_json: bool) -> None:
    """Print a result: its document as one line of JSON or, without ``--json``, its parts, one below the other."""
    from rich.text import Text

    from txstorm.cli.output import grid, print_json, stderr, stdout

    if as_json:
        print_json(document)
        return
    for part in parts:
        if isinstance(part, Grid):
            stdout().print(grid(*part))
        else:
            line = part if isinstance(part, Line) else Line(part, "")
            (stderr() if line.aside else stdout()).print(Text(line.text, line.style), soft_wrap=True)
