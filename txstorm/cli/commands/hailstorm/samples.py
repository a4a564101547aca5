"""Commands ``txstorm hailstorm run_sample`` and ``run_sample_emitter``: Hailstorm's example, trending hashtags."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from inspect import signature
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from txstorm.cli.commands.hailstorm.snapshots import Store
from txstorm.cli.commands.run import run, run_target
from txstorm.cli.options import EngineName, Json, show

if TYPE_CHECKING:
    from txstorm.cli.execute import Ending

BROKER, TOPIC = "localhost:9092", "test"
Broker = Annotated[str, typer.Option(metavar="HOST:PORT", help="A Kafka broker.")]
Topic = Annotated[str, typer.Option(metavar="T", help="The topic.")]


def run_sample(
    use_kafka: Annotated[bool, typer.Option("--use-kafka", help="Read a topic; see run_sample_emitter.")] = False,
    broker: Broker = BROKER,
    topic: Topic = TOPIC,
    file: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE", help="Read a file, one hashtag a line; may be repeated.", show_default="jobs/data/hashtags"
        ),
    ] = None,
    n: Annotated[int, typer.Option("--n", metavar="N", min=1, help="How many hashtags to show.")] = 20,
    every: Annotated[int, typer.Option(metavar="N", min=1, help="Print the ranking after every N changes.")] = 500,
    store: Store = None,
    engine: Annotated[EngineName, typer.Option(help="As of txstorm run.")] = EngineName.local,
    data_dir: Annotated[
        str | None, typer.Option(metavar="DIR", show_default="./txstorm-data/trending-hashtags")
    ] = None,
    json: Json = False,
) -> int:
    """Find the most frequent hashtags of files or of a Kafka topic, as jobs/trending_hashtags.py does, in a checkout.

    Files are read once; of a topic what is there now, and by the next call what has come since.

    With --json: the line of txstorm run, and "records", "top" ([[tag, count], …]), "clock" and "snapshots".

    Example: txstorm hailstorm run_sample --n 5
    """
    if use_kafka and file:
        raise typer.BadParameter("give --use-kafka or --file, not both")
    _checkout()
    source = [f"'kafka://{broker}/{topic}'"] if use_kafka else [repr(file)] if file else []
    arguments = [*source, f"n={n}", f"every={every}", f"out={'stderr' if json else 'console'!r}", f"store={store!r}"]
    target = f"jobs.trending_hashtags:make({', '.join(arguments)})"
    found: dict[str, Any] = {}

    def added(ending: Ending) -> Mapping[str, Any]:
        found.update(_results(ending))
        return found

    # The options of ``txstorm run`` that the sample does not have are as they are by default.
    options = {name: one.default for name, one in signature(run).parameters.items()}
    options |= {"target": target, "engine": engine, "data_dir": data_dir, "json": json}
    options |= {"available_now": use_kafka, "end_of_input": not use_kafka}
    code = run_target(SimpleNamespace(**options), added=added)
    if found and not json:
        show({}, *(f"{count:>7,} {tag}" for tag, count in found["top"]), as_json=False)
    return code


def run_sample_emitter(
    broker: Broker = BROKER,
    topic: Topic = TOPIC,
    sleep_ms: Annotated[float, typer.Option(metavar="MS", min=0, help="Pause after each batch.")] = 10,
    batch: Annotated[int, typer.Option(metavar="N", min=1, help="Hashtags in a batch.")] = 50,
    count: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Number of hashtags to send.", show_default="never")
    ] = None,
    json: Json = False,
) -> None:
    """Send the hashtags of jobs/data/hashtags to a Kafka topic, again and again, in a checkout.

    The topic is created, with four partitions, if it is missing. With --json: {"topic", "sent"}.

    Example: txstorm hailstorm run_sample_emitter --count 20000 --sleep-ms 0
    """
    _checkout()
    sent = import_module("jobs.producers.hashtags").emit(broker, topic, sleep_ms / 1000, batch, count)
    show({"topic": topic, "sent": sent}, f"{sent:,} hashtags sent to {topic}", as_json=json)


def _checkout() -> None:
    """Make the package `jobs` of the checkout that txstorm is in importable; raise `InputError` if it is in none."""
    from pathlib import Path

    import txstorm
    from txstorm.errors import InputError

    root = Path(txstorm.__file__).parents[1]
    if not (root / "jobs" / "trending_hashtags.py").exists():
        raise InputError(
            "the sample is jobs/trending_hashtags.py, which is not installed; run the command in a checkout of txstorm"
        )
    if str(root) not in sys.path:
        sys.path.append(str(root))


def _results(ending: Ending) -> dict[str, Any]:
    from txstorm.operations.savepoints import list_snapshots
    from txstorm.results.views import StateView, read_clock

    counts = StateView(ending.data_dir, "counts").to_arrow()
    (top,) = StateView(ending.data_dir, "top").to_pylist() or [{"state": []}]
    clock = read_clock(ending.data_dir)
    return {
        "records": sum(counts["state"].to_pylist()),
        "top": [[one["key"], one["count"]] for one in top["state"]],
        "clock": None if clock is None else dict(clock),
        "snapshots": [one.to_json() for one in list_snapshots(ending.data_dir)],
    }
