"""Entry point of the command line: ``txstorm`` and ``python -m txstorm``."""

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
from txstorm.allocator import limit_arenas
from txstorm.cli import hash_seed
from txstorm.cli.commands import (
    describe,
    doctor,
    event_time,
    hailstorm_commands,
    lifecycle,
    query,
    replay,
    run,
    stores_and_delay,
    time_travel,
)
from txstorm.cli.commands.dadstorm import language, network_views, run_network
from txstorm.errors import InputError
from txstorm.operations.ledger_choice import set_confirmation

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
    """Command group in which Ctrl-C is reported like any other error instead of ending the process silently."""

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
app.command("example")(describe.example)
app.command("describe")(describe.describe)
app.command("explain")(describe.explain)
app.command("validate")(describe.validate)
app.command("settings")(describe.settings)
app.command("state")(query.state)
app.command("history")(query.history)
app.command("snapshot")(query.snapshot)
app.command("changes")(query.changes)
app.command("views")(query.views)
app.command("windows")(event_time.windows)
app.command("join")(event_time.join)
app.command("replay", epilog=replay.REPLAY_EPILOG)(replay.replay)
app.command("dead-letters")(query.dead_letters)
app.command("list")(lifecycle.list_)
app.command("status")(lifecycle.status)
app.command("inspect")(lifecycle.inspect)
app.command("deactivate", epilog=lifecycle.EXIT_CODES)(lifecycle.deactivate)
app.command("activate", epilog=lifecycle.EXIT_CODES)(lifecycle.activate)
app.command("rebalance", epilog=lifecycle.EXIT_CODES)(lifecycle.rebalance)
app.command("accept-clock", epilog=lifecycle.EXIT_CODES)(lifecycle.accept_clock)
app.command("kill", epilog=lifecycle.EXIT_CODES)(lifecycle.kill)
app.command("repair")(lifecycle.repair)
app.command("rewind")(time_travel.rewind)
app.command("migrate")(time_travel.migrate)
app.command("recover")(lifecycle.recover)
app.add_typer(time_travel.savepoint_app, name="savepoint")
app.add_typer(lifecycle.ledger_app, name="ledger")
app.add_typer(stores_and_delay.delay_app, name="data-delay")
hailstorm_commands.hailstorm_app.command("run_sample")(hailstorm_commands.run_sample)
hailstorm_commands.hailstorm_app.command("run_sample_emitter")(hailstorm_commands.run_sample_emitter)
app.add_typer(hailstorm_commands.hailstorm_app, name="hailstorm")
language.dadstorm_app.command("run", epilog=run_network.RUN_NETWORK_EPILOG)(run_network.run_network)
for _command in (
    network_views.command,
    network_views.status,
    network_views.output,
    network_views.log,
    run_network.pcs,
    run_network.drill,
):
    language.dadstorm_app.command()(_command)
app.add_typer(language.dadstorm_app, name="dadstorm")
app.command("simulate")(doctor.simulate)
app.command("store-server", epilog=stores_and_delay.STORE_EPILOG)(stores_and_delay.store_server)
app.command("doctor")(doctor.doctor)
app.command("archive-classes")(doctor.archive_classes)


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
    """Handle the options that precede a command."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit; `arguments` default to those of the process."""
    if arguments is None:
        hash_seed.fix(sys.argv[1:])
        limit_arenas()  # before libraries are imported that start threads
    _open_closed_streams()
    set_confirmation(_ask)
    sys.exit(execute(list(sys.argv[1:] if arguments is None else arguments)))


def _ask(question: str) -> bool:
    from txstorm.cli.output import confirmed

    return confirmed(question)


def execute(arguments: list[str]) -> int:
    """Run one command and return its exit code; errors are reported, never raised."""
    as_json = "--json" in arguments
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Escape what they cannot encode, such as undecodable bytes in file names.
            stream.reconfigure(errors="backslashreplace")
    try:
        # A command returns its exit code, or None for 0; typer does the same for `--help` and `--version`.
        code = app(arguments, prog_name="txstorm", standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of our output has closed it. Python would fail again when it flushes the file at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        return _failed(_system_error(error), as_json=as_json, debug=_debug(arguments))
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - user code runs below; all of it is reported
        return _failed(error, as_json=as_json, debug=_debug(arguments))
    return code if isinstance(code, int) else 0


def _system_error(error: OSError) -> InputError:
    """Convert an error of the operating system to an `InputError`, since only the user can fix the cause."""
    where = "" if error.filename is None else f"{error.filename}: "
    msg = f"{where}{error.strerror or error}; check the path, its permissions and the disk, then run the command again"
    refused = InputError(msg)
    refused.__cause__ = error
    return refused


def _open_closed_streams() -> None:
    """Open closed standard streams on the null device, so that no output reaches a file that reuses a descriptor."""
    while (file := os.open(os.devnull, os.O_RDWR)) < 3:
        os.set_inheritable(file, True)
    os.close(file)
    sys.stdin = sys.stdin or open(0, encoding="utf-8")
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8")
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8")


def _failed(error: BaseException, *, as_json: bool, debug: bool) -> int:
    from txstorm.cli.output import print_json, report

    if not hasattr(error, "format_message"):
        return report(error, as_json=as_json, debug=debug)
    # An error of the parser. Its class is click's or typer's, depending on the version of typer.
    usage: typer.BadParameter = error  # type: ignore[assignment]
    usage.show()
    if as_json:
        about = {"type": "UsageError", "message": usage.format_message(), "exit_code": usage.exit_code}
        print_json({"error": about})
    return usage.exit_code


def _debug(arguments: Sequence[str]) -> bool:
    lower = [one.lower() for one in arguments]
    return "--log-level=debug" in lower or ("--log-level", "debug") in pairwise(lower)
