"""Command ``txstorm run``: run a topology, with progress, signals and result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from inspect import Signature, signature
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from txstorm.cli.options import EngineName, Json, Ledger, LogLevel, PrintPython, Target

if TYPE_CHECKING:
    from txstorm.cli.execute import Ending as RunEnding
    from txstorm.topology.graph import Topology

Command = TypeVar("Command", bound=Callable[..., int])

RUN_EPILOG = """[bold]Examples[/bold]

txstorm run jobs.word_count

txstorm run jobs.word_count --engine local --available-now --json

txstorm run "jobs.word_count:topology(path='books/*.txt', max_batch_rows=500)"

txstorm run jobs.word_count --max-pending 8 --set topology.message.timeout.secs=60 --set on_error='retry(3)'

txstorm run sales.toml --available-now

txstorm run jobs.word_count --standby

txstorm run jobs.word_count --drop old-counts

Exit codes: 0 done, 1 the topology failed, 2 bad input, 3 held by another run or fenced, 130 interrupted.
Settings for --set: txstorm settings
"""

PASSED_ON = "data_dir available_now until_txid journal target ledger standby end_of_input accept_clock".split()
"""Options of the command that are those of `txstorm.run`."""
Standby = Annotated[
    bool,
    typer.Option(
        "--standby", help="If another run is active, wait with the engine started, and take over when it ends."
    ),
]

MaxDeadLetters = Annotated[
    str | None,
    typer.Option(
        metavar="N|P%",
        help="Dead letters, or percent of input rows, after which the run fails; needs on_error=dead_letter.",
        show_default="no limit",
    ),
]


Engine = Annotated[EngineName, typer.Option(help="Engine of the processing phase; local: threads, without Java.")]
Journal = Annotated[
    str | None, typer.Option(metavar="FILE", help="Append the coordinator's events and commands to this file.")
]
Drop = Annotated[
    list[str] | None,
    typer.Option(
        "--drop",
        metavar="NAME",
        help="Drop a state, sink, map, outlet or source that the code no longer has; may be repeated.",
    ),
]
AvailableNow = Annotated[
    bool, typer.Option("--available-now", help="End when all data that the source has now is committed.")
]
EndOfInput = Annotated[
    bool, typer.Option("--end-of-input", help="As --available-now, and then end the input: all windows close.")
]
AcceptClock = Annotated[
    bool,
    typer.Option("--accept-clock", help="Believe this machine's clock, long after the last run or before its end."),
]


def run(
    target: Target,
    engine: Engine = EngineName.spark,
    data_dir: Annotated[
        str | None,
        typer.Option(metavar="DIR", show_default="./txstorm-data/<topology id>", help="Tables and ledger."),
    ] = None,
    ledger: Ledger = None,
    max_pending: Annotated[
        str | None, typer.Option(metavar="N|auto", help="Transactions in flight at most.", show_default="auto")
    ] = None,
    min_interval: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Start at most one transaction per interval.")
    ] = None,
    max_dead_letters: MaxDeadLetters = None,
    available_now: AvailableNow = False,
    end_of_input: EndOfInput = False,
    until_txid: Annotated[int | None, typer.Option(metavar="N", min=1, help="End when this txid is committed.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting, by its name or Storm's key; may be repeated."),
    ] = None,
    log_level: Annotated[
        LogLevel,
        typer.Option(case_sensitive=False, help="Lowest level of the log on standard error; debug: also stack traces."),
    ] = LogLevel.warning,
    json: Json = False,
    journal: Journal = None,
    standby: Standby = False,
    drop: Drop = None,
    accept_clock: AcceptClock = False,
    print_python: PrintPython = False,
) -> int:
    """Run a topology; a restart continues where it stopped.

    One Ctrl-C ends it cleanly: decided transactions are published, the rest is processed again by the next start.
    """
    return run_target(SimpleNamespace(**locals()))


def run_target(
    given: SimpleNamespace,
    changed: Callable[[Topology], Topology] | None = None,
    added: Callable[[RunEnding], Mapping[str, Any]] | None = None,
    want: Mapping[str, int] | None = None,
) -> int:
    """Run a topology, given the arguments of `run`; return the exit code.

    `changed` changes the topology before it is run; `added` returns what the result has besides; `want` is the clock at
    which a snapshot is wanted.
    """
    if given.until_txid is not None and (given.available_now or given.end_of_input):
        raise typer.BadParameter("give --until-txid, or --available-now or --end-of-input, not both")
    from txstorm.cli.execute import conclude, execute
    from txstorm.cli.output import log_to, print_text, stderr
    from txstorm.cli.target import load, pipeline

    if given.print_python:
        print_text(pipeline(given.target).python(given.target))
        return 0
    console = stderr()
    log_to(console, given.log_level)
    changes = settings_of(given.settings or [], given.max_pending, given.min_interval, given.max_dead_letters)
    topology = load(given.target) if changed is None else changed(load(given.target))
    options = {name: getattr(given, name) for name in PASSED_ON}
    options |= {"engine": given.engine.value, "settings": changes, "drop": given.drop or (), "want": want}
    ending = execute(topology, console, **options)
    if added is not None and ending.error is None:
        ending = replace(ending, document={**ending.document, **added(ending)})
    return conclude(ending, as_json=given.json, debug=given.log_level is LogLevel.debug)


def with_options_of_run(command: Command) -> Command:
    """Give a command the arguments and options of ``txstorm run``, too, which it takes as ``**given``."""
    own = [one for one in signature(command, eval_str=True).parameters.values() if one.kind is not one.VAR_KEYWORD]
    shared = signature(run, eval_str=True).parameters.values()
    parameters = [one.replace(kind=one.KEYWORD_ONLY) for one in (*shared, *own)]
    command.__signature__ = Signature(parameters, return_annotation=int)  # type: ignore[attr-defined]
    return command


def settings_of(
    pairs: list[str],
    max_pending: str | None = None,
    min_interval: float | None = None,
    max_dead_letters: str | None = None,
) -> dict[str, Any]:
    """Merge the settings from ``KEY=VALUE`` pairs and from separate options; values remain text, to be parsed later.

    Raises:
        SettingError: a pair has no ``=``, or a key is given twice.
    """
    from txstorm.errors import SettingError

    given: list[tuple[str, str, Any]] = []
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise SettingError(f"--set {pair!r}: expected KEY=VALUE, such as max_spout_pending=8")
        given.append(("--set", key.strip(), value.strip()))
    given.append(("--max-pending", "max_spout_pending", max_pending))
    given.append(("--min-interval", "min_interval", min_interval))
    given.append(("--max-dead-letters", "max_dead_letters", max_dead_letters))
    found: dict[str, Any] = {}
    for option, key, value in given:
        if value is not None and key in found:
            raise SettingError(f"{option}: setting {key} is given twice; give it once")
        if value is not None:
            found[key] = value
    return found
