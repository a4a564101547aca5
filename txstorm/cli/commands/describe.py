"""Commands that need no run: example, describe, explain, validate, settings."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from txstorm.cli.options import Format, Grid, Json, PrintPython, Target, show

EXAMPLE = '''"""Counts words. Run it where this file is: txstorm run words --engine local --available-now"""

from txstorm import BasicBolt, TransactionalTopologyBuilder
from txstorm.bolts import CountByKey
from txstorm.spouts import MemoryTransactionalSpout

# Of files instead: FileSpout("books/*.txt") from txstorm.spouts, whose field is "line", too.
LINES = ["the cow jumped over the moon", "the man went to the store", "how many apples can you eat"]


class Split(BasicBolt):
    fields = ("word",)

    def execute(self, tuple, collector):
        for word in tuple["line"].split():
            collector.emit(word)


builder = TransactionalTopologyBuilder("words", "lines", MemoryTransactionalSpout([LINES], ["line"], take=1))
builder.set_bolt("split", Split(), 2).shuffle_grouping("lines")
builder.set_committer_bolt("count", CountByKey("word", table="counts"), 2).fields_grouping("split", ["word"])
topology = builder.build_topology()
'''


def example(
    pipeline: Annotated[
        bool, typer.Option("--pipeline", help="A pipeline without code, which shows every kind of part.")
    ] = False,
) -> None:
    """Print a small topology to start from.

    Example: txstorm example > words.py; txstorm example --pipeline > sales.toml
    """
    from importlib.resources import files

    from txstorm.cli.output import print_text

    print_text(files("txstorm.pipelines").joinpath("example.toml").read_text("utf-8") if pipeline else EXAMPLE)


def describe(
    target: Target,
    format: Annotated[  # noqa: A002 - the option's name
        Format, typer.Option("--format", "-f", help="text; mermaid, dot or svg for drawing; json for programs.")
    ] = Format.text,
    print_python: PrintPython = False,
) -> None:
    """Show a topology: its components, streams, groupings and tables.

    Example: txstorm describe jobs.word_count --format svg > word-count.svg
    """
    from txstorm.cli.output import print_text
    from txstorm.cli.target import load, pipeline

    print_text(pipeline(target).python(target) if print_python else load(target).describe(format.value))


def explain(
    target: Target,
    why: Annotated[
        bool, typer.Option("--why", help="Say of each committer why a job cannot commit its large transactions.")
    ] = False,
) -> None:
    """Show the compiled plan: the components of each phase, and the stages that Spark runs.

    Example: txstorm explain jobs.word_count
    """
    from txstorm.cli.output import print_text
    from txstorm.cli.target import load
    from txstorm.plan.explain import explain as explained

    print_text(explained(load(target), why=why))


def validate(target: Target, json: Json = False) -> None:
    """Check a topology and its source without running it; all faults at once. Also takes an unfinished builder.

    Example: txstorm validate jobs.word_count
    """
    from txstorm.cli.target import PIPELINE, load, parse, resolve
    from txstorm.spouts.executors import check_spout
    from txstorm.topology.builder import TransactionalTopologyBuilder

    found: Any = None if target.endswith(PIPELINE) else resolve(parse(target))
    topology = found.build_topology() if isinstance(found, TransactionalTopologyBuilder) else load(target)
    check_spout(topology.spout.object)
    document = {"topology": topology.id, "faults": [], "warnings": list(topology.warnings)}
    show(document, f"{topology.id}: no faults", *(f"warning: {one}" for one in topology.warnings), as_json=json)


def settings(json: Json = False) -> None:
    """List the settings that --set takes, with Storm's keys for them."""
    from txstorm.topology.settings import Settings

    known = Settings.listed()
    rows = [(one.name, str(one.default), one.description, one.storm_key or "") for one in known]
    table = Grid(("setting", "default", "what it does", "Storm's key"), rows)
    show({"settings": [one._asdict() for one in known]}, table, as_json=json)
