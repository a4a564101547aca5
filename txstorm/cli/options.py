"""Arguments and options that several commands share, and the values some of them take."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class EngineName(StrEnum):
    """Where the processing phase runs."""

    spark = "spark"
    local = "local"


class LogLevel(StrEnum):
    """From which level on txstorm's log goes to standard error."""

    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"


class Format(StrEnum):
    """The forms of a description."""

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
        help="MODULE, MODULE:ATTRIBUTE or MODULE:FACTORY(ARGUMENTS). The attribute is 'topology' when none is named. "
        "The current directory is searched first. ARGUMENTS are Python literals: they are parsed, never evaluated.",
    ),
]
DataDir = Annotated[
    str,
    typer.Argument(metavar="DATA_DIR", show_default=False, help="The data directory, such as txstorm-data/word-count."),
]
Ledger = Annotated[
    str | None,
    typer.Option(
        metavar="SPEC",
        show_default="the one DATA_DIR was run with",
        help="The ledger: sqlite:PATH, zookeeper:HOSTS/CHROOT, delta:URI or memory.",
    ),
]
Json = Annotated[
    bool, typer.Option("--json", help="End standard output with one line of JSON, also when there is an error.")
]
