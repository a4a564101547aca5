"""Commands ``txstorm hailstorm run``, ``snapshot``, ``snapshots``, ``zk_init`` and ``zk_show``."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from txstorm.cli.commands.ledgers import at_ledger
from txstorm.cli.commands.run import RUN_EPILOG, run_target, with_options_of_run
from txstorm.cli.options import DataDir, Grid, Json, Ledger, show

if TYPE_CHECKING:
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
