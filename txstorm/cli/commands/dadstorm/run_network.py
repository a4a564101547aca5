"""Commands that start processes: ``txstorm dadstorm run``, by replicas or as a topology; ``drill``; ``pcs``."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from txstorm.cli.commands.dadstorm.language import Allow, File
from txstorm.cli.commands.run import Standby, settings_of
from txstorm.cli.options import EngineName, Json, Ledger, LogLevel, show
from txstorm.errors import InputError

if TYPE_CHECKING:
    from txstorm.cli.execute import Ending
    from txstorm.dadstorm.configuration import Configuration
    from txstorm.dadstorm.master.network_run import NetworkOptions, NetworkRun

RUN_NETWORK_EPILOG = """[bold]Examples[/bold]

txstorm dadstorm run jobs/dadstorm/reach.cfg

txstorm dadstorm run jobs/dadstorm/reach.cfg --step

txstorm dadstorm run jobs/dadstorm/reach.cfg --set ack_timeout=2 --set ping=3

txstorm dadstorm run jobs/dadstorm/reach.cfg --engine local --id reach-local

Exit codes: 0 done, 1 the network failed, 2 bad input, 3 held by another run or fenced, 130 interrupted.
Settings for --set: ack_timeout, ping, buffer, max_batch_rows, and those of txstorm settings
"""
OWN = {"ack_timeout": float, "ping": float, "buffer": int, "max_batch_rows": int}


Replicas = Annotated[bool, typer.Option("--replicas", help="By replica processes, the default.")]
Engine = Annotated[EngineName | None, typer.Option(help="As a topology on this engine.", show_default=False)]
Id = Annotated[
    str | None, typer.Option("--id", metavar="ID", help="Id of the topology.", show_default="the name of FILE")
]
Directory = Annotated[
    str | None, typer.Option(metavar="DIR", show_default="./txstorm-data/ID", help="Tables and ledger.")
]
Local = Annotated[bool, typer.Option("--local", help="All replicas on this machine, whatever their addresses say.")]
Key = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Key of the process creation services.", show_default="see pcs --help"),
]
Step = Annotated[bool, typer.Option("--step", help="Carry out one command of the script at each Enter.")]
Stay = Annotated[bool, typer.Option("--stay", help="Go on when the script is over and nothing moves.")]
Log = Annotated[str | None, typer.Option(metavar="FILE", help="The log.", show_default="DIR/dadstorm.log")]
Sets = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting; may be repeated.")]
Level = Annotated[LogLevel, typer.Option(case_sensitive=False, help="Lowest level of messages on standard error.")]


def run_network(
    file: File,
    replicas: Replicas = False,
    engine: Engine = None,
    id: Id = None,
    data_dir: Directory = None,
    ledger: Ledger = None,
    standby: Standby = False,
    local: Local = False,
    key: Key = None,
    step: Step = False,
    stay: Stay = False,
    allow: Allow = None,
    log: Log = None,
    settings: Sets = None,
    log_level: Level = LogLevel.warning,
    json: Json = False,
) -> int:
    """Run an operator network: each replica a process that may be killed and frozen, or a topology on an engine.

    It ends when the script is over and nothing moves any more; what is held then is shown, and the next run goes on
    with it. With --json: {"topology", "semantics", "committed_txid", "txids", "tuples", "seconds", "replays", "lost",
    "repeated", "held": {OP: {replica: n}}, "operators": {OP: {"received", "processed", "emitted"}}, "data_dir", "log"}.
    """
    if engine is not None and (replicas or local or step or log or key):
        raise typer.BadParameter("--engine runs a topology, without --replicas, --local, --step, --log and --key")
    from txstorm.cli.execute import execute
    from txstorm.cli.output import log_to, stderr
    from txstorm.dadstorm.configuration import check_files, load
    from txstorm.dadstorm.master.replica_topology import replica_topology
    from txstorm.dadstorm.topology import build_topology

    console = stderr()
    log_to(console, log_level)
    configuration = load(file)
    for warning in configuration.warnings:
        console.print(f"{file}:{warning['line']}:{warning['column']}: warning: {warning['message']}", soft_wrap=True)
    modules = tuple(allow or ())
    own, core = _settings(settings or [])
    check_files(configuration, modules, lines=not str(core.get("on_error")).startswith("dead_letter"))
    given: dict[str, Any] = {"data_dir": data_dir, "ledger": ledger, "available_now": not stay, "settings": core}
    if engine is not None:
        topology = build_topology(configuration, id, allow=modules, max_batch_rows=own.get("max_batch_rows", 1000))
        ending, run = execute(topology, console, standby=standby, engine=engine.value, **given), None
    else:
        options = _options(own, allow=modules, local=local, key=key, log=log, step=step, stay=stay)
        topology, run = replica_topology(configuration, options, id)
        if step:
            _step_by_enter(run, console)
        target = f"txstorm.dadstorm.master.replica_topology:replicas({os.path.abspath(file)!r}, {modules!r}, {id!r})"
        given |= {"engine": "local", "target": target}
        ending = execute(topology, console, lambda: [_table(run)], standby=standby, **given)
    return _concluded(ending, configuration, run, json=json, debug=log_level is LogLevel.debug)


def _settings(pairs: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings of runs by replicas, as numbers, and those of the core."""
    from txstorm.errors import SettingError

    own, core = dict[str, Any](), dict[str, Any]()
    for name, value in settings_of(pairs).items():
        if name not in OWN:
            core[name] = value
            continue
        try:
            own[name] = OWN[name](value)
        except ValueError:
            own[name] = 0
        if not 0 < own[name] < float("inf"):
            what = "a number" if OWN[name] is float else "a whole number"
            raise SettingError(f"setting {name}: expected {what} above 0, got {value!r}")
    return own, core


def _options(
    own: Mapping[str, Any], *, allow: tuple[str, ...], local: bool, key: str | None, log: str | None, **flags: Any
) -> NetworkOptions:
    from txstorm.dadstorm.master.network_run import NetworkOptions
    from txstorm.dadstorm.processes.fleet import FleetSettings

    fleet = {name: own[name] for name in ("ping", "buffer") if name in own}
    network = {name: own[name] for name in ("ack_timeout", "max_batch_rows") if name in own}
    settings = FleetSettings(**fleet, allow=allow, local=local, key=None if key is None else Path(key))
    return NetworkOptions(**network, fleet=settings, log=None if log is None else Path(log), **flags)


def _step_by_enter(run: NetworkRun, console: Any) -> None:
    from txstorm.lanes import start_thread

    def read() -> None:
        for _ in sys.stdin:
            run.step()
        run.steps = len(run.configuration.commands)

    console.print("Enter carries out the next command", soft_wrap=True)
    start_thread(read, name="txstorm-steps")


def _table(run: NetworkRun) -> Any:
    from txstorm.cli.commands.dadstorm.network_views import replica_table
    from txstorm.cli.output import grid

    return grid(*replica_table(run.replicas()))


def _concluded(ending: Ending, configuration: Configuration, run: NetworkRun | None, *, json: bool, debug: bool) -> int:
    from txstorm.cli.output import print_json, report

    done = _document(ending, configuration, run)
    if ending.error is not None:
        return report(ending.error, as_json=json, debug=debug, run=done)
    if json:
        print_json(done)
    else:
        _summarise(done, configuration, ending.data_dir)
    return 0


def _document(ending: Ending, configuration: Configuration, run: NetworkRun | None) -> dict[str, Any]:
    """Return the result as ``--json`` prints it."""
    known = ending.document
    plain = {name: known[name] for name in ("topology", "committed_txid", "txids", "tuples", "seconds", "replays")}
    shown: dict[str, Any] = {"lost": 0, "repeated": 0, "held": {}, "operators": {}, "log": None}
    semantics = "exactly-once"
    if run is not None:
        semantics, shown = configuration.semantics, run.result()
        plain["tuples"] -= known["txids"]  # the conditions of each transaction
    killed = {"killed_by": known["killed_by"]} if "killed_by" in known else {}
    return {**plain, "semantics": semantics, **shown, "data_dir": str(ending.data_dir), **killed}


def _summarise(done: Mapping[str, Any], configuration: Configuration, data_dir: Path) -> None:
    from txstorm.api.names import counted
    from txstorm.cli.execute import shortest
    from txstorm.cli.output import grid, stdout
    from txstorm.dadstorm.topology import kept
    from txstorm.errors import TxstormError
    from txstorm.results.views import SinkView

    console = stdout()
    lost = f"{counted(done['lost'], 'tuple')} lost, {done['repeated']:,} repeated"
    head = f"{done['topology']}, {done['semantics']}: committed txid {done['committed_txid']}, {done['seconds']:.1f} s"
    console.print(f"{head}; {lost}", soft_wrap=True)
    rows = [
        (name, *(f"{one[what]:,}" for what in ("received", "processed", "emitted")), f"{sum(held.values()):,}")
        for name, one in done["operators"].items()
        for held in [done["held"].get(name, {})]
    ]
    if rows:
        numbers = ("received", "processed", "emitted", "held")
        console.print(grid(("operator", *numbers), rows, right=numbers))
    for one in configuration.operators:
        if configuration.consumers(one.id) or not kept(one, configuration):
            continue
        with suppress(TxstormError):
            found = SinkView(data_dir, f"{one.id}_emitted").to_arrow()
            last = ", ".join(found["fields"][-1].as_py()) if found.num_rows else "none"
            see = f"txstorm dadstorm output {shortest(data_dir)} {one.id}"
            console.print(f"{one.id}: {counted(found.num_rows, 'tuple')} ({see}); the last one: {last}", soft_wrap=True)


LISTEN = "127.0.0.1:10001"

KeyFile = Annotated[
    Path | None,
    typer.Option(
        "--key",
        metavar="FILE",
        show_default="~/.txstorm/dadstorm.key",
        help="File with the key that process creation services and master share; only its owner may read it.",
    ),
]


def pcs(
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where to listen; masters expect port 10001.")
    ] = LISTEN,
    key: KeyFile = None,
    json: Json = False,
) -> None:
    """Start replicas on this machine for runs elsewhere whose configuration names it, until Ctrl-C or SIGTERM.

    Whoever has the key can run code here as you: a missing key file is made, with a random key; copy it to the other
    machines yourself. What travels is not encrypted. Prints one line when it listens; with --json: {"address", "key"}.

    Example: txstorm dadstorm pcs --listen 10.0.0.7:10001
    """
    from txstorm.dadstorm.processes.services import KEY_FILE, ProcessCreationService, read_key

    host, _, port = listen.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise InputError(f"--listen: expected HOST:PORT, got {listen!r}")
    service = ProcessCreationService(host, int(port), read_key(key, create=True))
    address, file = ":".join(map(str, service.address)), str((key or KEY_FILE).expanduser())
    show({"address": address, "key": file}, f"listening on {address}, with the key in {file}", as_json=json)
    service.serve()


def drill(
    file: File,
    faults: Annotated[int, typer.Option(metavar="N", min=1, help="Faults that hit an open delivery.")] = 10,
    seed: Annotated[int, typer.Option(metavar="S", help="The same seed gives the same script of faults.")] = 0,
    allow: Allow = None,
    settings: Sets = None,
    json: Json = False,
) -> int:
    """Run a network undisturbed, and again while replicas and master are killed, stopped and frozen; compare.

    Both run in temporary directories, without the file's own Crash, Freeze and Unfreeze. Compared is what the operators
    that none reads emit, in any order. With --json: {"seed", "semantics", "faults": {kind: n}, "missing", "extra",
    "kept"}. Exit codes: 0 the semantics was kept, 1 it was broken, 2 bad input, or fewer than N faults hit.

    Example: txstorm dadstorm drill network.cfg --faults 20
    """
    from txstorm.cli.interrupts import Interrupts
    from txstorm.cli.output import stderr
    from txstorm.dadstorm.master import drill as drills

    words = [
        word for name, given in (("--allow", allow), ("--set", settings)) for one in given or () for word in (name, one)
    ]
    tell = (lambda _: None) if json else lambda line: stderr().print(line, soft_wrap=True)
    with Interrupts(tell):  # they end its master, and with it the replicas
        found = drills.drill(Path(file), faults, seed, words, tell)
    hits = ", ".join(f"{number} {kind}" for kind, number in found["faults"].items())
    head = f"{found['semantics']}: {'kept' if found['kept'] else 'BROKEN'}; seed {seed}, faults that hit: {hits}"
    show(found, f"{head}; {found['missing']:,} tuples missing, {found['extra']:,} extra", as_json=json)
    return 0 if found["kept"] else 1
