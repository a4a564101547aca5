"""Command ``txstorm dadstorm drill``: whether a network keeps its semantics under random faults."""

from __future__ import annotations

from typing import Annotated

import typer

from txstorm.cli.commands.dadstorm.language import Allow, File
from txstorm.cli.commands.dadstorm.run_network import Sets
from txstorm.cli.options import Json, show


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
    from pathlib import Path

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
