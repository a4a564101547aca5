"""Names: what a user may call a thing, and Storm's camelCase for what a user overrides."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

NAME_PATTERN = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}", re.ASCII)
DEFAULT_STREAM = "default"


def name_fault(kind: str, name: object) -> str | None:
    """The sentence that says why `name` cannot name a `kind`, or None when it can."""
    if isinstance(name, str) and NAME_PATTERN.fullmatch(name):
        return None
    return (
        f"{kind} {name!r}: a name is a letter followed by at most 63 ASCII letters, digits, '_' or '-'; "
        "choose another one, it also names directories"
    )


def field_fault(where: str, name: object) -> str | None:
    """The sentence that says why `name` cannot be a field or column, or None when it can."""
    if not isinstance(name, str) or not name or "\0" in name:
        return f"{where}: field {name!r} is not a non-empty string"
    if name.startswith("_"):
        return f"{where}: field {name!r} starts with '_', which txstorm keeps for its own columns; rename it"
    return None


def counted(number: int, word: str) -> str:
    """``1 value``, ``2 values``."""
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def near(word: str, known: list[str]) -> str:
    """``" (did you mean 'x'?)"`` for the nearest of `known`, or an empty text."""
    from difflib import get_close_matches

    found = get_close_matches(word, known, n=3, cutoff=0.6)
    return f" (did you mean {' or '.join(repr(one) for one in found)}?)" if found else ""


class StormNames:
    """Base of what users subclass: an override in Storm's camelCase is the override of the snake_case method.

    A subclass lists the pairs in `storm_names`; the alias is made when the class is, so nothing is looked up
    while tuples flow.
    """

    storm_names: ClassVar[Mapping[str, str]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for camel, snake in cls.storm_names.items():
            if camel in cls.__dict__ and snake not in cls.__dict__:
                setattr(cls, snake, cls.__dict__[camel])
