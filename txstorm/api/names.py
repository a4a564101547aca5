"""Rules for names of topologies, components, streams and tables; camelCase aliases for Storm's method names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

NAME_PATTERN = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}", re.ASCII)
DEFAULT_STREAM = "default"


def name_fault(kind: str, name: object) -> str | None:
    """Return the reason why `name` is not a valid name of a `kind`, as a sentence; None if it is valid."""
    if isinstance(name, str) and NAME_PATTERN.fullmatch(name):
        return None
    return (
        f"{kind} {name!r}: a name is a letter followed by at most 63 ASCII letters, digits, '_' or '-'; "
        "choose another one, it also names directories"
    )


def stream_fault(kind: str, name: object) -> str | None:
    """Return the reason why `name` is not a valid name of a stream, as `name_fault`; Storm has one called ``$late``."""
    return name_fault(kind, name.removeprefix("$") if isinstance(name, str) else name) and name_fault(kind, name)


def field_fault(where: str, name: object) -> str | None:
    """Return the reason why `name` is not a valid field or column name, as a sentence; None if it is valid."""
    if not isinstance(name, str) or not name or "\0" in name:
        return f"{where}: field {name!r} is not a non-empty string"
    if name.startswith("_"):
        return f"{where}: field {name!r} starts with '_', which txstorm keeps for its own columns; rename it"
    return None


def counted(number: int, word: str) -> str:
    """Return a number and its noun, in the plural where needed: ``1 value``, ``2 values``."""
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def map_side_id(bolt: str, source: str, stream: str) -> str:
    """Return the id of the map-side stage of `bolt` in the tasks of `source`, which no component of a user can have."""
    return f"{bolt} (from {source}{'' if stream == DEFAULT_STREAM else f'/{stream}'})"


def near(word: str, known: list[str]) -> str:
    """Return a hint such as ``" (did you mean 'x'?)"`` with words of `known` similar to `word`, in any case."""
    from difflib import get_close_matches

    spelled = {one.lower(): one for one in known}
    found = [spelled[one] for one in get_close_matches(word.lower(), spelled, n=3, cutoff=0.6)]
    return f" (did you mean {' or '.join(repr(one) for one in found)}?)" if found else ""


class StormNames:
    """Base class that lets subclasses override methods under Storm's camelCase names.

    `storm_names` maps each camelCase name to its snake_case method. The alias is set when the subclass is created, so
    it costs nothing per tuple.
    """

    storm_names: ClassVar[Mapping[str, str]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for camel, snake in cls.storm_names.items():
            if camel in cls.__dict__ and snake not in cls.__dict__:
                setattr(cls, snake, cls.__dict__[camel])
