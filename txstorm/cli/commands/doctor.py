"""``txstorm doctor``."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from txstorm.cli.options import Json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from txstorm.cli.commands.checks import Check

ENGINES = ("local", "spark")


def doctor(json: Json = False) -> int:
    """Say what is there, what is missing and how to get it; tries out both engines.

    Exit code 0 when topologies can run on at least one engine, else 1.
    """
    from rich.text import Text

    from txstorm.cli.commands.checks import all_checks
    from txstorm.cli.output import print_json, stderr, stdout

    console, found = stdout(), []
    for check in all_checks(lambda what: stderr().print(f"{what} …", style="dim")):
        found.append(check)
        if not json:
            console.print(Text.assemble(_mark(check), f" {check.name}: {check.found}"), soft_wrap=True)
            if not check.ok and check.remedy:
                console.print(Text(f"    → {check.remedy}", "yellow"), soft_wrap=True)
    working = engines(found)
    if json:
        print_json({"ok": bool(working), "engines": working, "checks": [asdict(check) for check in found]})
    else:
        console.print(verdict(working), soft_wrap=True)
    return 0 if working else 1


def engines(checks: Sequence[Check]) -> list[str]:
    """The engines that were tried and work."""
    working = {check.name for check in checks if check.ok}
    return [name for name in ENGINES if f"engine {name}" in working]


def verdict(working: Sequence[str]) -> str:
    """The result in words."""
    if not working:
        return "Topologies cannot run here yet."
    if len(working) == len(ENGINES):
        return "Everything works."
    missing = next(name for name in ENGINES if name not in working)
    return f"Topologies run with --engine {working[0]}; {missing} needs what is marked above."


def _mark(check: Check) -> tuple[str, str]:
    if check.ok:
        return "✓", "green"
    return ("✗", "red") if check.needed_for else ("–", "dim")
