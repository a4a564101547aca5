"""Windowed components of a data directory: which there are, how many windows are open, which txid fired a window."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path

from txstorm.api.context import EPOCH
from txstorm.api.names import near
from txstorm.errors import InputError
from txstorm.results.aggregate_windows import AggregateWindows
from txstorm.results.read import list_states
from txstorm.results.views import committed_txid, read_directory_history
from txstorm.results.windows import PANES, PROGRESS, SESSIONS, TUPLES, ComponentWindows, time_text
from txstorm.windows.rules.event_time import END

MOST_COUNTED = 1000


def windowed_components(data_dir: Path) -> list[str]:
    """Return the ids of the windowed components that have tables in a data directory."""
    states = set(list_states(data_dir))
    names = (name.removesuffix(PROGRESS) for name in states if name.endswith(PROGRESS))
    return sorted(name for name in names if states & {name + TUPLES, name + PANES, name + SESSIONS})


def component_windows(data_dir: Path, component: str, txid: int | None = None) -> ComponentWindows:
    """Return the windows of a component, a bolt or an aggregate; errors as `ComponentWindows`."""
    buffers = component + TUPLES in list_states(data_dir)
    return (ComponentWindows if buffers else AggregateWindows)(data_dir, component, txid)


def open_window_counts(data_dir: Path) -> dict[str, int]:
    """Return windowed component → number of open windows that the end of input closes, at most `MOST_COUNTED`.

    Omits components without any: windows that slide by count wait for further tuples.
    """
    found = {}
    for component in windowed_components(data_dir):
        windows = component_windows(data_dir, component)
        if windows.fired != END:
            closing = (one for one in windows.open_windows() if one.end is not None or windows.slides_by_time)
            found[component] = sum(1 for _ in islice(closing, MOST_COUNTED))
    return {component: count for component, count in found.items() if count}


def check_component(data_dir: Path, component: str) -> None:
    """Raise `InputError` if `component` has no windows in a data directory."""
    known = windowed_components(data_dir)
    if component not in known:
        there = f"there are {', '.join(known)}" if known else "no component of it has windows"
        raise InputError(f"{data_dir}: no windows of a component {component!r}{near(component, known)}; {there}")


def txid_that_fired(data_dir: Path, component: str, end: datetime) -> int:
    """Return the txid that fired the windows of `component` that end at `end`: the first whose watermark reached it.

    Raises:
        InputError: the watermark has not reached it, or that txid is no longer kept.
    """
    check_component(data_dir, component)
    wanted = ComponentWindows(data_dir, component).check_end(end)
    txids = read_directory_history(data_dir)["txid"].to_pylist()
    low, high = int(min(txids)), committed_txid(data_dir)
    if not _reached(data_dir, component, high, wanted):
        mark = ComponentWindows(data_dir, component).watermark
        raise InputError(
            f"{component}: the window that ends at {end.isoformat()} has not fired; its watermark is {time_text(mark)} "
            f"as of txid {high}; see: txstorm windows {data_dir} {component}"
        )
    while low < high:
        middle = (low + high) // 2
        if _reached(data_dir, component, middle, wanted):
            high = middle
        else:
            low = middle + 1
    return low


def _reached(data_dir: Path, component: str, txid: int, wanted: int) -> bool:
    mark = ComponentWindows(data_dir, component, txid).fired
    return mark is not None and mark >= wanted


def parsed_time(text: str, option: str) -> datetime:
    """Parse an ISO 8601 time with a zone, or milliseconds since 1970; raise `InputError`, naming `option`."""
    try:
        if text.removeprefix("-").isdecimal():
            return EPOCH + timedelta(milliseconds=int(text))
        time = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        time = None
    if time is None or time.tzinfo is None:
        msg = f"{option} {text!r}: expected a time with a zone, such as 2026-01-31T12:00:00+00:00, or milliseconds"
        raise InputError(msg)
    return time.astimezone(UTC)
