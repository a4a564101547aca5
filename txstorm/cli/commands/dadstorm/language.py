"""Commands ``txstorm dadstorm parse``, ``check``, ``describe`` and ``plan``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from txstorm.cli.options import Format, Grid, Json, show

if TYPE_CHECKING:
    from txstorm.dadstorm.configuration import Configuration

dadstorm_app = typer.Typer(
    help="Operator networks from a configuration file: replicas to kill and freeze, or a topology on Spark.\n\n"
    "[bold]First steps[/bold], in a checkout, without Java:\n\n"
    "txstorm dadstorm describe jobs/dadstorm/reach.cfg\n\n"
    "txstorm dadstorm run jobs/dadstorm/reach.cfg\n\n"
    "txstorm dadstorm output txstorm-data/reach OP4",
    no_args_is_help=True,
)

File = Annotated[str, typer.Argument(metavar="FILE", show_default=False, help="The configuration.")]
Allow = Annotated[
    list[str] | None,
    typer.Option(
        metavar="MODULE",
        help="A Python module that CUSTOM may name, besides those beside the configuration; may be repeated.",
        show_default=False,
    ),
]


@dadstorm_app.command()
def parse(file: File, json: Json = False) -> None:
    """Parse a configuration: all faults at once, each with its line and column; warnings go to standard error.

    Example: txstorm dadstorm parse jobs/dadstorm/reach.cfg --json
    """
    from txstorm.cli.output import print_json, print_text

    configuration = _loaded(file, quiet=json)
    if json:
        print_json(configuration.to_json())
    else:
        print_text(configuration.text)


@dadstorm_app.command()
def check(file: File, allow: Allow = None, json: Json = False) -> None:
    """Check a configuration, its data files, and the code of its operators, without running it.

    Example: txstorm dadstorm check jobs/dadstorm/reach.cfg
    """
    from txstorm.cli.output import print_json, print_text
    from txstorm.dadstorm.configuration import check_files

    configuration = _loaded(file, quiet=json)
    check_files(configuration, allow or ())
    if json:
        print_json({"configuration": file, "faults": [], "warnings": list(configuration.warnings)})
    else:
        print_text(f"{file}: no faults")


@dadstorm_app.command()
def describe(
    file: File,
    format: Annotated[  # noqa: A002 - the option's name
        Format, typer.Option("--format", "-f", help="text; mermaid, dot or svg for drawing; json for programs.")
    ] = Format.text,
    json: Json = False,
) -> None:
    """Show a network: operators, replicas, routing, and the script.

    Example: txstorm dadstorm describe jobs/dadstorm/reach.cfg --format svg > reach.svg
    """
    from txstorm.cli.output import print_text

    print_text(_loaded(file, quiet=True).describe("json" if json else format.value))


@dadstorm_app.command()
def plan(file: File, json: Json = False) -> None:
    """Show the place of each replica in the network. With --json: {"replicas": […]}, with all that it has to know.

    Example: txstorm dadstorm plan jobs/dadstorm/reach.cfg
    """
    from txstorm.dadstorm.rep_info import plan as planned

    told = planned(_loaded(file, quiet=json))["replicas"]
    rows = [
        (
            f"{one.operator_id} {one.replica}",
            one.my_url,
            " ".join([one.operator_spec, *([",".join(one.operator_param)] if one.operator_param else [])]),
            ", ".join(one.receive_info_urls or one.input),
            ", ".join(one.send_info_urls) or "-",
            ", ".join(one.siblings_urls) or "-",
        )
        for one in told
    ]
    titles = ("replica", "address", "does", "receives from", "sends to", "siblings")
    show({"replicas": [one.to_json() for one in told]}, Grid(titles, rows), as_json=json)


def _loaded(file: str, *, quiet: bool) -> Configuration:
    """Parse a configuration, and print its warnings unless `quiet`."""
    from txstorm.cli.output import stderr
    from txstorm.dadstorm.configuration import load

    configuration = load(file)
    for one in () if quiet else configuration.warnings:
        stderr().print(f"{file}:{one['line']}:{one['column']}: warning: {one['message']}", soft_wrap=True)
    return configuration
