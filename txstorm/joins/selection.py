"""Result of a join of two sides: its type, `how`, and its output fields, as ``stream:field``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from txstorm.api.names import DEFAULT_STREAM, near
from txstorm.errors import InputError
from txstorm.joins.side import Side

LEFT, RIGHT = "left", "right"
INNER, LEFT_OUTER, RIGHT_OUTER, FULL, SEMI, ANTI = "inner", "left", "right", "full", "semi", "anti"
SPELLINGS = {
    **{one: one for one in (INNER, LEFT_OUTER, RIGHT_OUTER, FULL, SEMI, ANTI)},
    **{"leftouter": LEFT_OUTER, "left_outer": LEFT_OUTER, "rightouter": RIGHT_OUTER, "right_outer": RIGHT_OUTER},
    **{"outer": FULL, "fullouter": FULL, "full_outer": FULL},
    **{"leftsemi": SEMI, "left_semi": SEMI, "leftanti": ANTI, "left_anti": ANTI},
}
"""Spelling of a join type, Spark's included, in small letters → the type."""
LEFT_ROWS = (INNER, LEFT_OUTER, SEMI, ANTI)
"""Types of joins that need no right rows without a match."""


@dataclass(frozen=True)
class Selected:
    """One output field: its name, the side that it comes from (``left`` or ``right``), and the field there."""

    name: str
    side: str
    field: str


def join_type(kind: str, how: Any, offered: Sequence[str] = tuple(SPELLINGS.values()), reason: str = "") -> str:
    """Return the type that `how` spells; raise `InputError` if it is none, or not one of those `offered`.

    Args:
        kind: the class, for the message.
        how: what the user gave.
        offered: the types that this join has.
        reason: why the other types are not offered, for the message.
    """
    found = SPELLINGS.get(how.lower()) if isinstance(how, str) else None
    if found is not None and found in offered:
        return found
    if isinstance(how, str) and how.lower() == "cross":
        reason = "a join needs a key, so there is no cross join"
    elif found is None:
        reason = ""
    hint = near(how, list(offered)) if isinstance(how, str) else ""
    expected = ", ".join(dict.fromkeys(offered))
    raise InputError(f"{kind}: how: expected one of {expected}, got {how!r}{hint}{reason and '; ' + reason}")


def side_name(side: Side) -> str:
    """Return the name of a side in `select`: its stream, or its component for a default stream."""
    return side.component if side.stream == DEFAULT_STREAM else side.stream


def selection(
    kind: str,
    select: Sequence[str] | None,
    names: tuple[str, str],
    fields: tuple[Sequence[str], Sequence[str] | None],
    sides: Sequence[str] = (LEFT, RIGHT),
) -> tuple[list[Selected], list[str]]:
    """Return the selected fields, and the faults of `select`.

    Args:
        kind: the class, for messages.
        select: what the user gave; None: all fields of the sides that are in the results.
        names: the names of the left and the right side, beside ``left`` and ``right``.
        fields: the fields of the left and the right side; none if they are unknown.
        sides: the sides that are in the results.
    """
    known = dict(zip((LEFT, RIGHT), fields, strict=True))
    labels = dict(zip((LEFT, RIGHT), names if names[0] != names[1] else (LEFT, RIGHT), strict=True))
    found: list[tuple[str, str, str]] = []
    faults = []
    if select is None:
        found = [(labels[side], side, field) for side in sides for field in known[side] or ()]
    for one in select or ():
        prefix, colon, field = one.partition(":") if isinstance(one, str) else ("", "", "")
        if not colon or not field:
            faults.append(
                f"{kind}: select: expected 'stream:field', such as 'left:{(fields[0] or ['id'])[0]}', got {one!r}"
            )
            continue
        matching = [side for side, name in zip((LEFT, RIGHT), names, strict=True) if prefix in (side, name)]
        if not matching:
            expected = list(dict.fromkeys((LEFT, RIGHT, *names)))
            hint = near(prefix, expected)
            faults.append(f"{kind}: select: {one!r} names no side of the join{hint}; use one of {', '.join(expected)}")
        elif len(matching) > 1:
            faults.append(f"{kind}: select: {one!r} may be either side; write 'left:{field}' or 'right:{field}'")
        elif matching[0] not in sides:
            faults.append(f"{kind}: select: {one!r}: the results have left fields only with this how")
        elif (there := known[matching[0]]) and field not in there:
            hint = near(field, list(there))
            faults.append(f"{kind}: select: {one!r}: the side has no field {field!r}{hint}; it has {', '.join(there)}")
        else:
            found.append((prefix, matching[0], field))
    count = [field for _, _, field in found]
    made = [Selected(field if count.count(field) == 1 else f"{of}_{field}", side, field) for of, side, field in found]
    twice = sorted({one.name for one in made if [other.name for other in made].count(one.name) > 1})
    if twice:
        faults.append(f"{kind}: select: the results have two fields {', '.join(map(repr, twice))}; select each once")
    return list({one.name: one for one in made}.values()), faults
