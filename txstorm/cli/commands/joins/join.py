"""Command ``txstorm join``: positions of a join, its rows, and the history of a key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from txstorm.api.names import counted
from txstorm.cli.commands.ledgers import at_ledger
from txstorm.cli.options import DataDir, Grid, Json, Ledger, Line, Txid, show


def join(
    data_dir: DataDir,
    component: Annotated[str, typer.Argument(metavar="COMPONENT", show_default=False, help="The join.")],
    txid: Txid = None,
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
    from txstorm.results.joins import ComponentJoin, check_join, deduplicator, deduplicators_in, store_part
    from txstorm.results.key_history import KeyHistory

    directory = check_readable(at_ledger(data_dir, ledger))
    if key is not None:
        found = KeyHistory.read(ComponentJoin(directory, component, txid), key).to_json()
        show(found, *_history(found), as_json=json)
        return
    if component in deduplicators_in(directory):
        found, facts = deduplicator(directory, component, txid), _deduplicator
    elif check_join(directory, component):
        found, facts = ComponentJoin(directory, component, txid).to_json(), _interval_join
    else:
        found, facts = store_part(directory, component, txid), _store_part
    head = Line(f"{component}, as of txid {found['txid']}", "bold")
    show(found, head, Grid(None, list(facts(found))), as_json=json)


def _deduplicator(one: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    off, last = one["off_since"], one["last_duplicate"]
    yield "active", "yes" if one["active"] else f"no: switched off at {off}, until the next start of a run"
    if last is not None:
        yield "last duplicate", f"{last}, or the start of the run"
    yield "known ids", f"{one['known']:,}"


def _store_part(one: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if "pending" in one:
        yield "consumed time", one["consumed_time"] or "unknown: nothing passes"
    else:
        yield "position", one["position"] or "undefined"
    yield from ((f"partition {name}" if name else "newest", newest) for name, newest in one["partitions"].items())
    if "pending" in one:
        yield "pending", f"{counted(one['pending'], 'left row')}{_oldest(one)}"
    else:
        yield "rows kept for", f"{one['retain']:g} s"
    if one["slowest_partition"]:
        yield "slowest", f"partition {one['slowest_partition']}"


def _interval_join(one: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if one["how"] is None:
        yield "join", "not recorded before the first transaction"
    else:
        yield "join", f"{one['how']}, left − {one['before']:g} s ≤ right ≤ left + {one['after']:g} s"
    yield from _sides(one)
    yield "released", f"{counted(one['released'], 'left row')}, by the right position {one['position'] or 'undefined'}"
    yield "expired", f"right rows before {one['bound']}" if one["bound"] else "none"
    yield "pending", f"{counted(one['pending'], 'left row')}{_oldest(one)}"
    yield "buffered", counted(one["buffered"], "right row")
    yield "joined", counted(one["joined"], "pair")
    unmatched = f"{counted(one['unmatched_left'], 'left row')}, {counted(one['unmatched_right'], 'right row')}"
    yield "unmatched", unmatched
    yield "stragglers", counted(one["stragglers"], "right row")
    yield "late", counted(one["late"], "left row")


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


def _history(one: Mapping[str, Any]) -> Iterator[str | Grid | Line]:
    yield Line(f"key {', '.join(one['key'])} of {one['component']}, as of txid {one['txid']}", "bold")
    rows = []
    for row in one["rows"]:
        ended = row["released"] if row["side"] == "left" else row["expired"]
        values = (*(row[name] for name in ("side", "id", "partition", "time", "added")), ended, row["matched"] or None)
        rows.append(["" if value is None else str(value) for value in values])
    numbers = ["added", "released/expired", "matched"]
    yield Grid(["side", "id", "partition", "time", *numbers], rows, numbers)
    yield from (f"{row['side']} {row['id']}: {'; '.join(row['why'])}" for row in one["rows"])
    names = ("left", "right", "released_before", "expired_before")
    steps = [[str(step["txid"]), *(step[name] or "" for name in names)] for step in one["positions"]]
    yield Grid(["txid", "left position", "right position", "released before", "expired before"], steps, ["txid"])
    if one["kept_after"]:
        yield Line(f"the history up to txid {one['kept_after']} is no longer kept")
