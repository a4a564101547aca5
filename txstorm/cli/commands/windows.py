"""Command ``txstorm windows``: watermarks and what holds them back, open windows, buffered and late tuples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from txstorm.api.names import counted
from txstorm.cli.commands.ledgers import at_ledger
from txstorm.cli.options import DataDir, Grid, Json, Ledger, Line, Txid, show

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
