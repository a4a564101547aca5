"""Command ``txstorm dadstorm pcs``: the process creation service of a machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from txstorm.cli.options import Json, show
from txstorm.errors import InputError

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
