"""Command ``txstorm join``: positions of a join, its rows, and the history of a key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from txstorm.api.names import counted
from txstorm.cli.commands.ledgers import at_ledger
from txstorm.cli.options import DataDir, Json, Ledger

if TYPE_CHECKING:
    from rich.console import Console


def join(
    data_dir: DataDir,
    component: Annotated[str, typer.Argument(metavar="COMPONENT", show_default=False, help="The join.")],
    txid: Annotated[
        int | None, typer.Option(metavar="N", help="As of this transaction.", show_default="the last committed")
    ] = None,
    key: Annotated[
        list[str] | None,
        typer.Option(
            metavar="K", help="Show the history of this key; once for each of its fields.", show_default=False
        ),
    ] = None,
    ledger: Ledger = None,
    json: Json = False,
) -> None:
    """Show a join: positions by partition and what holds them back, pending and buffered rows.

    COMPONENT is an IntervalJoin or, of a join over a store, the StoreFeed or the DataDelaySync; of a Deduplicator it
    shows whether it is active.

    With --key, the history of a key: which transactions added, released, matched and expired each of its rows, the
    positions at that time, and why a row was not joined. It goes back as far as changes are kept (history_retention).
    Works beside a live run.

    Example: txstorm join txstorm-data/clicks join --key user-7
    """
    from txstorm.books.data_directory import check_readable
    from txstorm.cli.output import print_json, stdout
    from txstorm.results.joins import ComponentJoin, check_join, deduplicator, deduplicators_in, store_part
    from txstorm.results.key_history import KeyHistory

    directory, show = check_readable(at_ledger(data_dir, ledger)), _show
    if key is not None:
        shown, show = KeyHistory.read(ComponentJoin(directory, component, txid), key).to_json(), _show_history
    elif component in deduplicators_in(directory):
        shown, show = deduplicator(directory, component, txid), _show_deduplicator
    elif check_join(directory, component):
        shown = ComponentJoin(directory, component, txid).to_json()
    else:
        shown, show = store_part(directory, component, txid), _show_store_part
    if json:
        print_json(shown)
    else:
        show(shown, stdout())


def _show_deduplicator(one: Mapping[str, Any], console: Console) -> None:
    from txstorm.cli.output import grid

    off, last = one["off_since"], one["last_duplicate"]
    facts = [("active", "yes" if one["active"] else f"no: switched off at {off}, until the next start of a run")]
    if last is not None:
        facts.append(("last duplicate", f"{last}, or the start of the run"))
    facts.append(("known ids", f"{one['known']:,}"))
    console.print(f"{one['component']}, as of txid {one['txid']}", style="bold", soft_wrap=True)
    console.print(grid(None, facts))


def _show_store_part(one: Mapping[str, Any], console: Console) -> None:
    from txstorm.cli.output import grid

    facts = [(f"partition {name}" if name else "newest", newest) for name, newest in one["partitions"].items()]
    if "pending" in one:
        facts.insert(0, ("consumed time", one["consumed_time"] or "unknown: nothing passes"))
        facts.append(("pending", f"{counted(one['pending'], 'left row')}{_oldest(one)}"))
    else:
        facts.insert(0, ("position", one["position"] or "undefined"))
        facts.append(("rows kept for", f"{one['retain']:g} s"))
    if one["slowest_partition"]:
        facts.append(("slowest", f"partition {one['slowest_partition']}"))
    console.print(f"{one['component']}, as of txid {one['txid']}", style="bold", soft_wrap=True)
    console.print(grid(None, facts))


def _show(one: Mapping[str, Any], console: Console) -> None:
    from txstorm.cli.output import grid

    unmatched = f"{counted(one['unmatched_left'], 'left row')}, {counted(one['unmatched_right'], 'right row')}"
    facts = [
        ("join", _form(one)),
        *_sides(one),
        ("released", f"{counted(one['released'], 'left row')}, by the right position {one['position'] or 'undefined'}"),
        ("expired", f"right rows before {one['bound']}" if one["bound"] else "none"),
        ("pending", f"{counted(one['pending'], 'left row')}{_oldest(one)}"),
        ("buffered", counted(one["buffered"], "right row")),
        ("joined", counted(one["joined"], "pair")),
        ("unmatched", unmatched),
        ("stragglers", counted(one["stragglers"], "right row")),
        ("late", counted(one["late"], "left row")),
    ]
    console.print(f"{one['component']}, as of txid {one['txid']}", style="bold", soft_wrap=True)
    console.print(grid(None, facts))


def _form(one: Mapping[str, Any]) -> str:
    if one["how"] is None:
        return "not recorded before the first transaction"
    return f"{one['how']}, left − {one['before']:g} s ≤ right ≤ left + {one['after']:g} s"


def _oldest(one: Mapping[str, Any]) -> str:
    return f", the oldest at {one['oldest_pending']}" if one["oldest_pending"] else ""


def _sides(one: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    from txstorm.results.joins import holding_text

    for name in ("left", "right"):
        side = one[name]
        if side["input"] is None:
            continue
        component, stream = side["input"]
        source = component if stream == "default" else f"{component}/{stream}"
        held = side["held_back_by"]
        holds = "" if held is None or (len(side["partitions"]) < 2 and held["newest"]) else f"; {holding_text(held)}"
        yield name, f"{source}, position {side['position'] or 'undefined'}{holds}"
        for partition, newest in side["partitions"].items():
            if partition:
                yield f"{name} {partition}", f"newest {newest or 'none yet'}"


def _show_history(one: Mapping[str, Any], console: Console) -> None:
    from txstorm.cli.output import grid

    key = ", ".join(one["key"])
    console.print(f"key {key} of {one['component']}, as of txid {one['txid']}", style="bold", soft_wrap=True)
    rows = [
        [
            *(str(row[name] if row[name] is not None else "") for name in ("side", "id", "partition", "time", "added")),
            *(str(_or_none(row)), str(row["matched"] or "")),
        ]
        for row in one["rows"]
    ]
    numbers = ["added", "released/expired", "matched"]
    console.print(grid(["side", "id", "partition", "time", *numbers], rows, right=numbers))
    for row in one["rows"]:
        console.print(f"{row['side']} {row['id']}: {'; '.join(row['why'])}", soft_wrap=True)
    names = ("left", "right", "released_before", "expired_before")
    steps = [[str(step["txid"]), *(step[name] or "" for name in names)] for step in one["positions"]]
    titles = ["txid", "left position", "right position", "released before", "expired before"]
    console.print(grid(titles, steps, right=["txid"]))
    if one["kept_after"]:
        console.print(f"the history up to txid {one['kept_after']} is no longer kept", style="dim", soft_wrap=True)


def _or_none(row: Mapping[str, Any]) -> Any:
    ended = row["released"] if row["side"] == "left" else row["expired"]
    return "" if ended is None else ended
