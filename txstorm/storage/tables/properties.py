"""Table properties that tell other readers and writers what they may rely on, also on tables made without them.

A table gets them when it is made, and the ones that it lacks when a coordinator leads it. What a user has set stays as
it is: `SET` keeps the values that txstorm gave, so that only those follow a setting that changes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

from txstorm.clients.delta.delta_values import LOG_RETENTION

SET = "txstorm.set"
MAX_LAG = "txstorm.stateMaxLag"
DEFAULT_SECONDS = 86_400.0
_UNITS = (("days", 86_400), ("hours", 3_600), ("minutes", 60), ("seconds", 1))


def log_properties(seconds: float = DEFAULT_SECONDS) -> dict[str, str]:
    """The properties of a table whose log keeps its entries for `seconds`.

    Other writers must not shorten the log: Spark and delta-rs would delete entries, where txstorm archives them.
    """
    whole = max(1, math.ceil(seconds))
    unit, size = next(one for one in _UNITS if whole % one[1] == 0)
    return {LOG_RETENTION: f"interval {whole // size} {unit}", "delta.enableExpiredLogCleanup": "false"}


def lag_properties(seconds: float | None) -> dict[str, str]:
    """The property of a state's table that may be `seconds` behind its changes while its topology runs; None: any."""
    return {MAX_LAG: "none" if seconds is None else f"{seconds:g}"}


def recorded(wanted: Mapping[str, str]) -> dict[str, str]:
    """`wanted` for a new table, with the note of what txstorm has set."""
    return {**wanted, SET: json.dumps(wanted, sort_keys=True)}


def due(found: Mapping[str, str], wanted: Mapping[str, str]) -> dict[str, str]:
    """What a table with the properties `found` has to get so that it has the `wanted` ones; nothing when it has.

    A property that it has with a value that txstorm did not set is a user's, and stays.
    """
    ours = _set_before(found)
    changed = {
        name: value
        for name, value in wanted.items()
        if found.get(name) != value and (name not in found or found[name] == ours.get(name))
    }
    return changed and {**changed, SET: json.dumps({**ours, **changed}, sort_keys=True)}


def _set_before(found: Mapping[str, str]) -> Mapping[str, str]:
    try:
        ours = json.loads(found.get(SET, "{}"))
    except (ValueError, RecursionError):
        return {}
    return ours if isinstance(ours, dict) else {}
