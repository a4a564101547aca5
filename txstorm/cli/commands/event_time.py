"""Commands ``txstorm windows`` and ``txstorm join``: watermarks, positions, what holds them back, and what waits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from txstorm.api.names import counted
from txstorm.cli.options import DataDir, Grid, Json, Ledger, Line, Txid, at_ledger, show

SHOWN = 50


def windows(
    data_dir: DataDir,
    component: Annotated[
        str | None, typer.Argument(metavar="[COMPONENT]", show_default="all", help="A windowed component.")
    ] = None,
    txid: Txid = None,
    window: Annotated[
        str | None,
        typer.Option(metavar="END", help="List the tuples of the window with this end: a time, or milliseconds."),
    ] = None,
    key: Annotated[
        list[str] | None, typer.Option(metavar="K", help="With --window: of this key; once for each of its fields.")
    ] = None,
    ledger: Ledger = None,
    json: Json = False,
    limit: Annotated[int, typer.Option(metavar="N", min=0, help="Open windows to show at most.")] = SHOWN,
) -> None:
    """Show windows: the watermark and what holds it back, open windows, buffered and late tuples.

    Works beside a live run. The tuples of a window that has fired can be listed as of the transaction before.

    Example: txstorm windows txstorm-data/readings sum --window 2026-01-31T12:00:00+00:00
    """
    from txstorm.books.data_directory import check_readable
    from txstorm.results.windowed_components import check_component, component_windows, windowed_components

    directory = check_readable(at_ledger(data_dir, ledger))
    if component is not None:
        check_component(directory, component)
    if window is not None:
        if component is None:
            raise typer.BadParameter("--window needs the COMPONENT as well")
        _list_tuples(directory, component, txid, window, key, as_json=json)
        return
    if key is not None:
        raise typer.BadParameter("--key needs --window END")
    names = windowed_components(directory) if component is None else [component]
    found = [component_windows(directory, name, txid).to_json(limit) for name in names]
    parts = [part for one in found for part in _parts(one)]
    show({"components": found}, *(parts or [f"{directory}: no component has windows"]), as_json=json)


def _list_tuples(
    directory: Path, component: str, txid: int | None, window: str, key: list[str] | None, *, as_json: bool
) -> None:
    from txstorm.results.read import json_value
    from txstorm.results.windowed_components import component_windows, parsed_time

    end = parsed_time(window, "--window")
    rows = component_windows(directory, component, txid).tuples(end, key)
    tuples = rows.to_pylist()
    found = {"component": component, "end": end.isoformat(), "tuples": list(map(json_value, tuples))}
    show(found, Grid(rows.column_names, [list(map(str, row.values())) for row in tuples]), as_json=as_json)


def _parts(one: Mapping[str, Any]) -> Iterator[str | Grid | Line]:
    facts = [
        ("windows", _form(one)),
        ("watermark", one["watermark"] or "none yet"),
        *([("fired up to", one["frontier"])] if one["frontier"] else []),
        *_inputs(one["inputs"], event_time=one["event_time"]),
        ("buffered", counted(one["buffered"], "tuple")),
        ("late", counted(one["late"], "tuple")),
        *([("ahead", counted(one["ahead"], "tuple"))] if one["ahead"] else []),
        *([("waiting", counted(one["waiting"], "window end"))] if one["waiting"] else []),
    ]
    yield Line(f"{one['component']}, as of txid {one['txid']}", "bold")
    yield Grid(None, facts)
    if not one["open"]:
        yield "no open window holds tuples"
        return
    rows = []
    for row in one["open"]:
        owner = str(row["task"]) if row["key"] is None else ", ".join(map(str, row["key"]))
        rows.append([owner, row["start"] or "", row["end"] or "open", f"{row['tuples']:,}"])
    yield Grid(["task" if one["key"] is None else "key", "start", "end", "tuples"], rows, ["tuples"])
    if one["more_open"]:
        yield Line(f"{counted(len(rows), 'open window')} shown; --limit shows more")


def _form(one: Mapping[str, Any]) -> str:
    if not one["windows"]:
        return "not recorded before the first transaction"
    form = one["windows"]
    parts = [f"{name} {value if name == 'closed' else _length(value)}" for name, value in form.items()]
    owner = "per task" if one["key"] is None else f"per {', '.join(one['key'])}"
    return f"{', '.join(parts)}, {owner}, {'event time' if one['event_time'] else 'processing time'}"


def _length(value: Any) -> str:
    if not isinstance(value, Mapping):
        return "by a function"
    return counted(value["tuples"], "tuple") if "tuples" in value else f"{value['microseconds'] / 1_000_000:g} s"


def _inputs(inputs: list[dict[str, Any]], *, event_time: bool) -> Iterator[tuple[str, str]]:
    for one in inputs if event_time else ():
        name = one["component"] if one["stream"] == "default" else f"{one['component']}/{one['stream']}"
        text = f"newest {one['newest']}" if one["newest"] else "no data yet"
        if one["partitions"]:
            text += f" (slowest of {len(one['partitions'])} partitions: {one['slowest_partition']})"
        text += f", {one['late']:,} late" if one["late"] else ""
        yield f"input {name}", f"{text}{', holds the watermark back' if one['holds_back'] else ''}"


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
