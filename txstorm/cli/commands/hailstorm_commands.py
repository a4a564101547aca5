"""Commands ``txstorm hailstorm``: ``run``, snapshots, the registry in ZooKeeper, and the example, trending hashtags."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from inspect import signature
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from txstorm.cli.commands.run import RUN_EPILOG, run, run_target, with_options_of_run
from txstorm.cli.options import DataDir, EngineName, Grid, Json, Ledger, at_ledger, show

if TYPE_CHECKING:
    from txstorm.cli.execute import Ending
    from txstorm.topology.graph import Topology

hailstorm_app = typer.Typer(
    help="Topologies of commutative monoids: snapshots at a clock of the source, stores, the registry.\n\n"
    "[bold]First steps[/bold], in a checkout, without Java:\n\n"
    "txstorm hailstorm run_sample\n\n"
    "txstorm state txstorm-data/trending-hashtags top\n\n"
    "txstorm hailstorm snapshots txstorm-data/trending-hashtags",
    no_args_is_help=True,
)
RUN_HAILSTORM_EPILOG = RUN_EPILOG.replace(
    "txstorm run jobs.word_count\n",
    "txstorm hailstorm run jobs.trending_hashtags --engine local --end-of-input --store dir:snapshots\n\n"
    "txstorm hailstorm run jobs.trending_hashtags --want "
    """'{"hashtags-1": 99, "hashtags-2": 99, "hashtags-3": 99, "hashtags-4": 99}'\n""",
    1,
)
ZOOKEEPER = "127.0.0.1:2181"

Store = Annotated[
    str | None,
    typer.Option(
        metavar="SPEC",
        help="Save each snapshot there, too: memory:, dir:PATH_OR_URI or sql:URL. A new data directory begins with the "
        "newest snapshot that all bolts have there.",
        show_default="as the topology says",
    ),
]
SnapshotEvery = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS", min=0, help="Seconds between automatic snapshots.", show_default="setting snapshot_every"
    ),
]
Want = Annotated[
    str | None,
    typer.Option(
        metavar="JSON",
        help="Take a snapshot at this clock, partition → offset, which no transaction passes before.",
        show_default=False,
    ),
]
FromBeginning = Annotated[
    bool, typer.Option("--from-beginning", help="Begin a new data directory empty, whatever the store has.")
]
Connect = Annotated[str, typer.Option(metavar="HOSTS[/CHROOT]", help="The ZooKeeper servers.")]
TopologyId = Annotated[str, typer.Option(metavar="ID", help="Id of the topology.", show_default=False)]


@hailstorm_app.command("run", epilog=RUN_HAILSTORM_EPILOG)
@with_options_of_run
def run_hailstorm(
    *,
    store: Store = None,
    snapshot_every: SnapshotEvery = None,
    want: Want = None,
    from_beginning: FromBeginning = False,
    **given: Any,
) -> int:
    """Run a topology as txstorm run does, with snapshots at clocks of its source; any topology whose spout has clocks.

    Every SECONDS a snapshot is taken: a named savepoint, at which nothing is copied and nothing waits. With --want the
    transactions are planned so that one of them has exactly that clock.
    """
    from txstorm.clocks import Clock

    wanted = None if want is None else Clock.parse(want)
    if snapshot_every is not None:
        given["settings"] = [*(given["settings"] or []), f"snapshot_every={snapshot_every}"]

    def changed(topology: Topology) -> Topology:
        from txstorm.hailstorm.builder import as_hailstorm

        return as_hailstorm(topology, store, from_beginning=from_beginning)

    return run_target(SimpleNamespace(**given), changed, want=wanted)


@hailstorm_app.command("zk_init")
def zk_init(topology: TopologyId, connect: Connect = ZOOKEEPER, json: Json = False) -> None:
    """Create the nodes in ZooKeeper below which a run of a topology shows itself, and its ledger, if missing.

    A run with --ledger zookeeper:HOSTS/CHROOT creates them by itself.

    Example: txstorm hailstorm zk_init --connect 127.0.0.1:2181/trends --topology trending-hashtags
    """
    from txstorm.hailstorm.registry import init_registry, registry_root

    hosts, _, chroot = connect.partition("/")
    init_registry(hosts, chroot, topology)
    root = registry_root(chroot, topology)
    document = {"topology": topology, "connect": hosts, "root": root}
    show(document, f"{topology}: {root} is there on {hosts}", as_json=json)


@hailstorm_app.command("zk_show")
def zk_show(topology: TopologyId, connect: Connect = ZOOKEEPER, json: Json = False) -> None:
    """Show the state of the negotiator and the living processors of a run, as its nodes in ZooKeeper have them.

    With --json: {"master_state": … or null, "living_processors": {NAME-INSTANCE: entry}}.

    Example: txstorm hailstorm zk_show --connect 127.0.0.1:2181/trends --topology trending-hashtags
    """
    from txstorm.hailstorm.registry import read_registry

    hosts, _, chroot = connect.partition("/")
    found = read_registry(hosts, chroot, topology)
    master, rows = found["master_state"], []
    shown = "no run" if master is None else f"{master['state']}{_shown_clock(master['clock'])}"
    for name, one in sorted(found["living_processors"].items()):
        place = _shown_clock(one.get("clock")).removeprefix(" at ")
        place = f"{one['partition']}: {one['offset']}" if "partition" in one else place
        rows.append((name, one["state"], f"{one['host']} ({one['pid']})", place))
    table = [Grid(("processor", "state", "host (pid)", "clock or offset"), rows)] if rows else []
    show(found, f"{topology}: {shown}", *table, as_json=json)


@hailstorm_app.command("snapshot")
def snapshot(
    data_dir: DataDir,
    clock: Annotated[
        str | None, typer.Option(metavar="JSON", help="Partition → offset.", show_default="the present clock")
    ] = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of its savepoint.", show_default="snapshot-NUMBER")
    ] = None,
    wait: Annotated[
        float | None,
        typer.Option(
            metavar="S", min=0, help="Seconds after which it is given up.", show_default="setting snapshot_wait"
        ),
    ] = None,
    cancel: Annotated[bool, typer.Option("--cancel", help="Give up the clock that is wanted.")] = False,
    ledger: Ledger = None,
    json: Json = False,
) -> None:
    """Ask for a snapshot at a clock of the source, and wait for it; beside a live run, or for the next one.

    No transaction passes the clock: a partition that has reached it is held until the others have. Without --clock, the
    snapshot is of the last planned transaction.

    With --json: {"number", "clock", "txid", "name", "stamp"}; txid and stamp are null if the next run is to take it.

    Example: txstorm hailstorm snapshot txstorm-data/trending-hashtags --name before-upgrade
    """
    from txstorm.clocks import Clock
    from txstorm.operations.savepoints import cancel_snapshot, taken_snapshot

    directory = at_ledger(data_dir, ledger)
    if cancel:
        if (clock, name, wait) != (None, None, None):
            raise typer.BadParameter("--cancel gives up what is wanted; give no --clock, --name or --wait with it")
        found = cancel_snapshot(directory)
        said = "no clock was wanted" if found["clock"] is None else f"given up{_shown_clock(found['clock'])}"
    else:
        found = taken_snapshot(directory, None if clock is None else Clock.parse(clock), name, wait)
        found = {"txid": None, "stamp": None, **found}
        done = "the next run takes it" if found["txid"] is None else f"txid {found['txid']}"
        said = f"snapshot {found['name']}{_shown_clock(found['clock'])}: {done}"
    show({key: found[key] for key in (("clock",) if cancel else _SNAPSHOT)}, said, as_json=json)


_SNAPSHOT = ("number", "clock", "txid", "name", "stamp")


@hailstorm_app.command("snapshots")
def snapshots(data_dir: DataDir, ledger: Ledger = None, json: Json = False) -> None:
    """List the snapshots at clocks of a topology, the newest first; needs no code, works beside a live run.

    With --json: {"topology": ID, "snapshots": [{"number", "clock", "txid", "name", "stamp"}, …]}.

    Example: txstorm hailstorm snapshots txstorm-data/trending-hashtags
    """
    from txstorm.operations.savepoints import list_snapshots
    from txstorm.operations.status import read_status

    directory = at_ledger(data_dir, ledger)
    found = list_snapshots(directory)
    topology = read_status(directory)["topology"] if json else None
    document = {"topology": topology, "snapshots": [one.to_json() for one in found]}
    rows = [(str(one.number), str(one.txid), one.name, str(one.clock)) for one in found]
    show(document, Grid(("number", "txid", "name", "clock"), rows, ("number", "txid")), as_json=json)


def _shown_clock(clock: Mapping[str, int] | None) -> str:
    from txstorm.clocks import Clock

    return "" if clock is None else f" at {Clock(clock)}"


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
