"""Command ``txstorm store-server``: an HTTP API before a join store."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from txstorm.cli.options import AllowHost, Json, show
from txstorm.errors import InputError

TOKEN = "TXSTORM_STORE_TOKEN"  # noqa: S105 - the name of a variable
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
            envvar=TOKEN,
            show_default=False,
            help="Token that every request must have; required if --host is not this machine. Other users can see "
            f"options: prefer the variable {TOKEN}.",
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

    door = checked_door(host, token, f"--token or {TOKEN}", allow_host or ())
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
