"""The entry of the command line: ``txstorm`` and ``python -m txstorm``."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Any, NoReturn

import typer
import typer.core

from txstorm._version import __version__
from txstorm.cli import hash_seed
from txstorm.cli.commands import describe as show
from txstorm.cli.commands import doctor, ledgers, replay, run, simulate
from txstorm.cli.commands import lifecycle as life
from txstorm.cli.commands import query as inspect
from txstorm.cli.commands import query as reading
from txstorm.cli.commands import time_travel as rewind
from txstorm.cli.commands import time_travel as savepoints
from txstorm.errors import InputError
from txstorm.ledger.credentials import ask_with

HELP = """Transactional topologies on Spark: parallel micro-batches, committed in strong order, exactly once.

[bold]First steps[/bold], in any directory, without Java:

txstorm example > words.py
txstorm run words --engine local --available-now
txstorm state txstorm-data/words counts

A topology is a module with a variable named 'topology'; see: txstorm run --help
"""
EPILOG = """[bold]Examples[/bold]

txstorm doctor

txstorm validate words

txstorm history txstorm-data/words

txstorm status txstorm-data/words
"""


class _Commands(typer.core.TyperGroup):
    """The commands; Ctrl-C in one of them is an error like others, instead of a silent end."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            from txstorm.cli.output import Interrupted

            raise Interrupted from None


app = typer.Typer(
    name="txstorm",
    cls=_Commands,
    help=HELP,
    epilog=EPILOG,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run", epilog=run.RUN_EPILOG)(run.run)
app.command("example")(show.example)
app.command("describe")(show.describe)
app.command("explain")(show.explain)
app.command("validate")(show.validate)
app.command("settings")(show.settings)
app.command("state")(inspect.state)
app.command("history")(inspect.history)
app.command("snapshot")(reading.snapshot)
app.command("changes")(reading.changes)
app.command("views")(reading.views)
app.command("replay", epilog=replay.REPLAY_EPILOG)(replay.replay)
app.command("dead-letters")(inspect.dead_letters)
app.command("list")(life.list_)
app.command("status")(life.status)
app.command("inspect")(life.inspect)
app.command("deactivate", epilog=life.EXIT_CODES)(life.deactivate)
app.command("activate", epilog=life.EXIT_CODES)(life.activate)
app.command("rebalance", epilog=life.EXIT_CODES)(life.rebalance)
app.command("kill", epilog=life.EXIT_CODES)(life.kill)
app.command("repair")(life.repair)
app.command("rewind")(rewind.rewind)
app.command("recover")(ledgers.recover)
app.add_typer(savepoints.savepoint_app, name="savepoint")
app.add_typer(ledgers.ledger_app, name="ledger")
app.command("simulate")(simulate.simulate)
app.command("doctor")(doctor.doctor)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"txstorm {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """What stands before a command."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit; `arguments` are those of the process by default."""
    if arguments is None:
        hash_seed.fix(sys.argv[1:])
    _open_closed_streams()
    ask_with(_ask)
    sys.exit(execute(list(sys.argv[1:] if arguments is None else arguments)))


def _ask(question: str) -> bool:
    from txstorm.cli.output import confirmed

    return confirmed(question)


def execute(arguments: list[str]) -> int:
    """Run one command; returns its exit code. No error leaves here but one that is asked for with debug."""
    as_json = "--json" in arguments
    _print_anything()
    try:
        # A command returns its exit code, or None for 0; so does typer for `--help` and `--version`.
        code = app(arguments, prog_name="txstorm", standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read our output has gone. Python would complain again when it closes the file at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        return _failed(_of_the_system(error), as_json=as_json, debug=_debug(arguments))
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - user code runs below; all of it is reported
        return _failed(error, as_json=as_json, debug=_debug(arguments))
    return code if isinstance(code, int) else 0


def _of_the_system(error: OSError) -> InputError:
    """What the operating system refuses is not ours to mend, wherever it was asked."""
    where = "" if error.filename is None else f"{error.filename}: "
    msg = f"{where}{error.strerror or error}; check the path, its permissions and the disk, then run the command again"
    refused = InputError(msg)
    refused.__cause__ = error
    return refused


def _open_closed_streams() -> None:
    """Standard streams that were closed lead nowhere: else the next file that is opened would get what is printed."""
    while (file := os.open(os.devnull, os.O_RDWR)) < 3:
        os.set_inheritable(file, True)
    os.close(file)
    sys.stdin = sys.stdin or open(0, encoding="utf-8")
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8")
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8")


def _print_anything() -> None:
    """Names of files may hold bytes that are no text, and a terminal may not know every character."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _failed(error: BaseException, *, as_json: bool, debug: bool) -> int:
    from txstorm.cli.output import print_json, report

    if not hasattr(error, "format_message"):
        return report(error, as_json=as_json, debug=debug)
    # The parser's own errors. Their classes are click's or typer's own, depending on the version of typer.
    usage: typer.BadParameter = error  # type: ignore[assignment]
    usage.show()
    if as_json:
        about = {"type": "UsageError", "message": usage.format_message(), "exit_code": usage.exit_code}
        print_json({"error": about})
    return usage.exit_code


def _debug(arguments: Sequence[str]) -> bool:
    given = [one.lower() for one in arguments]
    return "--log-level=debug" in given or ("--log-level", "debug") in pairwise(given)
