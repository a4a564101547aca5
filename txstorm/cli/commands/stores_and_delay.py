"""Commands ``txstorm store-server``, ``txstorm data-delay collect`` and ``txstorm data-delay serve``."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from txstorm.cli.options import AllowHost, Json, show
from txstorm.errors import AwayError, InputError

if TYPE_CHECKING:
    from txstorm.joins.data_delay import DelayReport
    from txstorm.operations.delay_collector import DelayCollector

DELAY_TOKEN = "TXSTORM_DELAY_TOKEN"  # noqa: S105 - the name of a variable
COLLECT_EPILOG = """[bold]Examples[/bold]

txstorm data-delay collect orders --data-dir txstorm-data/feeder --bootstrap-servers kafka:9092 --to http://delays:8071

txstorm data-delay collect orders --group feeder --bootstrap-servers kafka:9092 --once --json

[bold]Exit codes[/bold]: 0 when it is stopped by Ctrl-C or SIGTERM; 2 for wrong arguments, an unknown topic, a rejected
token. While Kafka or the API does not answer it goes on trying, except with --once.
"""
SERVE_EPILOG = """[bold]Examples[/bold]

txstorm data-delay serve --port 8071

curl http://127.0.0.1:8071/delay/orders

The API is described at /docs and /openapi.json of the server.
"""

delay_app = typer.Typer(
    help="Data delay: how far a consumer of Kafka is behind, for joins that wait for it.", no_args_is_help=True
)


class Unit(StrEnum):
    """Unit of times that are numbers."""

    s = "s"
    ms = "ms"
    us = "us"


class Isolation(StrEnum):
    """Isolation level of a consumer."""

    read_committed = "read_committed"
    read_uncommitted = "read_uncommitted"


Token = Annotated[
    str | None, typer.Option(metavar="TOKEN", envvar=DELAY_TOKEN, show_default=False, help="The API's bearer token.")
]
Consumer = Annotated[
    str | None, typer.Option(metavar="DIR", show_default=False, help="The consumer: the topology of this directory.")
]
Source = Annotated[
    str | None, typer.Option(metavar="NAME", show_default="all", help="With --data-dir: a source of its spout.")
]
Group = Annotated[
    str | None, typer.Option(metavar="GROUP", show_default=False, help="The consumer: this consumer group.")
]
Topics = Annotated[
    list[str] | None, typer.Option(metavar="TOPIC", show_default="all", help="A topic of it; may be repeated.")
]
TimeField = Annotated[
    str | None,
    typer.Option(metavar="FIELD", show_default="Kafka's timestamp", help="The field of JSON values with the time."),
]
KafkaConfig = Annotated[
    Path | None, typer.Option(metavar="FILE", show_default=False, help="Client settings: lines of NAME=VALUE.")
]
To = Annotated[str | None, typer.Option(metavar="URL", show_default="show only", help="The API to report to.")]


@delay_app.command("collect", epilog=COLLECT_EPILOG)
def collect(
    name: Annotated[str, typer.Argument(metavar="NAME", show_default=False, help="The name to report under.")],
    bootstrap_servers: Annotated[
        str, typer.Option(metavar="HOST:PORT,...", show_default=False, help="The Kafka brokers.")
    ],
    data_dir: Consumer = None,
    source: Source = None,
    group: Group = None,
    topic: Topics = None,
    time_field: TimeField = None,
    unit: Annotated[Unit, typer.Option(help="With --time-field: the unit of numbers in it.")] = Unit.ms,
    isolation_level: Annotated[Isolation, typer.Option(help="As the consumer reads.")] = Isolation.read_committed,
    kafka_config: KafkaConfig = None,
    to: To = None,
    token: Token = None,
    interval: Annotated[float, typer.Option(metavar="SECONDS", min=0.01, help="Time between reports.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Report once, and exit.")] = False,
    json: Json = False,
) -> None:
    """Report how far a consumer of Kafka topics has got, as times of records.

    Of every partition, the record at the last committed position is looked up. Up to the least of their times all has
    been consumed; partitions that are consumed to their end are left out, so that a paused stream has no delay. With
    --json, every report is a line of JSON.

    Example: txstorm data-delay collect orders --group feeder --bootstrap-servers kafka:9092 --once
    """
    from txstorm.joins.data_delay import checked_name

    checked_name(name)
    if (data_dir is None) == (group is None) or "" in (data_dir, group):
        raise typer.BadParameter("give the consumer: either --data-dir DIR or --group GROUP")
    if not bootstrap_servers.strip():
        raise typer.BadParameter("--bootstrap-servers is empty; give the Kafka brokers, HOST:PORT")
    if source is not None and data_dir is None:
        raise typer.BadParameter("--source needs --data-dir")
    from txstorm.books.data_directory import topology_in
    from txstorm.cli.output import log_to, stderr
    from txstorm.operations.delay_collector import DelayCollector, RecordTimes, directory_positions, group_positions

    log_to(stderr(), "warning")
    settings = {"bootstrap.servers": bootstrap_servers, **_settings(kafka_config)}
    if data_dir is None:
        positions = group_positions(settings, group or "")
    else:
        positions = partial(directory_positions, topology_in(data_dir), source)
    collector = DelayCollector(
        settings,
        positions,
        topics=topic or [],
        times=RecordTimes(time_field, unit.value),
        isolation=isolation_level.value,
    )
    try:
        _Reporting(name, collector, _poster(name, to, token), as_json=json).run(interval, once=once)
    finally:
        collector.close()


def _settings(path: Path | None) -> dict[str, str]:
    """Return the client settings in a file of lines NAME=VALUE; an error shows no value, which may be a password."""
    from txstorm.clients.config_files import code_faults
    from txstorm.clients.kafka.cluster import check_settings

    settings: dict[str, str] = {}
    try:
        text = "" if path is None else path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: expected text in UTF-8, lines of NAME=VALUE: {error}") from None
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, equals, value = line.partition("=")
        if not equals or not name.strip():
            raise InputError(f"{path}, line {number}: expected NAME=VALUE, a client setting of librdkafka")
        settings[name.strip()] = value.strip()
    if faults := code_faults(settings):
        raise InputError("\n".join(f"{path}: {fault}" for fault in faults))
    check_settings(settings)
    return settings


def _poster(name: str, url: str | None, token: str | None) -> Callable[[Mapping[str, Any]], None]:
    """Return a function that sends a report to the API at `url`, if that is given."""
    if url is None:
        return lambda _: None
    from pydantic_core import to_json

    from txstorm.clients.http import JsonClient

    client = JsonClient(url, "data delay", token=token or None, retry_for=0)

    def post(document: Mapping[str, Any]) -> None:
        client.call("POST", f"/delay/{name}", to_json(document))

    return post


class _Reporting:
    """Repeated reports of one collector, until a signal arrives."""

    def __init__(
        self, name: str, collector: DelayCollector, post: Callable[[Mapping[str, Any]], None], *, as_json: bool
    ) -> None:
        self._name, self._collector, self._post, self._as_json = name, collector, post, as_json
        self._shown = ""
        self._stopped = threading.Event()

    def run(self, interval: float, *, once: bool) -> None:
        """Report every `interval` seconds; with `once`, report once, and raise what goes wrong."""
        if threading.current_thread() is threading.main_thread() and not once:
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, lambda *_: self._stopped.set())
        while not self._stopped.is_set():
            try:
                self._report()
            except (AwayError, OSError) as error:
                if once:
                    raise error if isinstance(error, AwayError) else AwayError(str(error)) from error
                self._say(f"{self._name}: no report: {error}", "trouble")
            if once:
                return
            self._stopped.wait(interval)

    def _report(self) -> None:
        report = self._collector.report()
        document = report.to_json()
        self._post(document)
        if self._as_json:
            from txstorm.cli.output import print_json

            print_json({"name": self._name, **document})
        else:
            # Without a terminal only changes of the situation are shown, not every report.
            self._say(_sentence(self._name, report), f"{report.slowest} {report.consumed_time is None}")

    def _say(self, text: str, situation: str) -> None:
        from txstorm.cli.output import stderr, stdout

        console = stderr() if situation == "trouble" else stdout()
        if console.is_terminal or situation != self._shown:
            console.print(text, soft_wrap=True)
        self._shown = situation


def _sentence(name: str, report: DelayReport) -> str:
    caught_up = f"{len(report.caught_up)} of {len(report.consumed)} partitions at their end"
    if report.consumed_time is None:
        return f"{name}: unknown how far it is consumed: nothing yet of {report.slowest}; {caught_up}"
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=report.consumed_time)
    text = (
        f"{name}: consumed up to {moment.isoformat(timespec='milliseconds')}, {(report.delay or 0) / 1000:.1f} s behind"
    )
    if report.slowest is None:
        return f"{text}; {caught_up}"
    offset, end = report.consumed[report.slowest], report.ends[report.slowest]
    return f"{text}; slowest {report.slowest}, offset {offset} of {'unknown' if end is None else end}; {caught_up}"


@delay_app.command("serve", epilog=SERVE_EPILOG)
def serve(
    port: Annotated[int, typer.Option(metavar="P", min=0, max=65535, help="The port; 0: any free one.")] = 8071,
    host: Annotated[str, typer.Option(metavar="HOST", help="The address to listen on.")] = "127.0.0.1",
    token: Token = None,
    stale_after: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.1, help="Age from which a report is called stale.")
    ] = 60.0,
    allow_host: AllowHost = None,
    json: Json = False,
) -> None:
    """Serve the data delays that collectors report, for the joins that ask for them.

    POST /delay/NAME stores a report, GET /delay/NAME returns the last one: consumed time, delay, partitions, report
    time. Reports are kept in memory: after a restart, a name is unknown (404) until its collector reports again. Beyond
    this machine, a token is required. SIGTERM and Ctrl-C end it.

    Example: txstorm data-delay serve --port 8071
    """
    from txstorm.web.data_delay import delay_app as application
    from txstorm.web.serving import checked_door
    from txstorm.web.serving import serve as run_server

    def listening(url: str) -> None:
        show({"url": url}, f"data delays are served at {url}; the API is described at {url}/docs", as_json=json)

    door = checked_door(host, token, f"--token or {DELAY_TOKEN}", allow_host or ())
    run_server(application(stale=stale_after), door, port, listening)


STORE_TOKEN = "TXSTORM_STORE_TOKEN"  # noqa: S105 - the name of a variable
STORE_EPILOG = """[bold]Examples[/bold]

txstorm store-server --store memory --port 8080

TXSTORM_STORE_TOKEN=secret txstorm store-server --store redis:redis://redis1:6379/0 --prefix views --host 0.0.0.0

The API is described at /docs of the server, and in the page "Stores and data delay".
"""


def store_server(
    store: Annotated[
        str,
        typer.Option(
            "--store",
            metavar="SPEC",
            help="Where the rows are: memory, or redis:URL (redis://[USER:PASSWORD@]HOST/DB).",
        ),
    ],
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port to listen on; 0: any free one.")] = 8080,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    prefix: Annotated[
        str, typer.Option("--prefix", help="What all keys in Redis begin with; each store needs its own.")
    ] = "txstorm-join",
    token: Annotated[
        str | None,
        typer.Option(
            "--token",
            metavar="TOKEN",
            envvar=STORE_TOKEN,
            show_default=False,
            help="Token that every request must have; required if --host is not this machine. Other users can see "
            f"options: prefer the variable {STORE_TOKEN}.",
        ),
    ] = None,
    max_body: Annotated[
        int, typer.Option("--max-body", min=1024, metavar="BYTES", help="The most bytes of one request.")
    ] = 16 << 20,
    allow_host: AllowHost = None,
    json: Json = False,
) -> None:
    """Serve the rows of a join to RestStore over HTTP, until Ctrl-C or SIGTERM.

    Prints one line when it listens. With --store memory the rows last as long as the server.

    Example: txstorm store-server --store memory --port 8080
    """
    from txstorm.cli.output import stderr
    from txstorm.web.serving import checked_door, serve
    from txstorm.web.store_server import store_app

    door = checked_door(host, token, f"--token or {STORE_TOKEN}", allow_host or ())
    opened, name = _opened(store, prefix)
    try:
        opened.mark()
    except OSError as error:
        stderr().print(f"warning: {error}; requests are answered with 503 until it can be reached", soft_wrap=True)

    def listening(url: str) -> None:
        guarded = "with a token" if door.token else "without a token"
        sentence = f"listening on {url}: store {name}, {guarded}; the API is described at {url}/docs"
        show({"url": url, "store": name, "token": door.token is not None}, sentence, as_json=json)

    serve(store_app(opened, name, max_body_bytes=max_body), door, port, listening)


def _opened(spec: str, prefix: str) -> tuple[Any, str]:
    """Return the store that `spec` names, and its name without credentials."""
    from txstorm.joins import MemoryStore, RedisStore

    if spec == "memory":
        return MemoryStore(), spec
    if spec.startswith(("redis:", "rediss:")):
        rest = spec.removeprefix("redis:")
        url = spec if rest.startswith("//") or rest == spec else rest if "://" in rest else f"redis://{rest}"
        store = RedisStore(url, prefix=prefix)
        return store, store.address
    raise InputError(
        f"--store: got {spec.partition(':')[0]!r}, expected memory or redis:URL, such as redis:redis://localhost:6379/0"
    )
