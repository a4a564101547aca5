"""Lossless text form of plain values: JSON, in which values of types that JSON lacks are objects with one key, a tag.

The result of `loads` has exactly the types of the value given to `dumps`: tuples, sets, bytes, dates, decimals, and
dicts with any keys are kept apart from what JSON would make of them.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class NotPlain(ValueError):
    """Raised for a value without a text form; the message is the reason.

    Attributes:
        kind: the name of the unsupported type; None if the type is supported but the value is not.
    """

    def __init__(self, reason: str, kind: str | None = None) -> None:
        self.kind = kind
        super().__init__(reason)


def dumps(value: Any) -> str:
    """Encode `value` as text; raise `NotPlain` if it has no text form, and `RecursionError` if it contains itself."""
    return json.dumps(_tag(value), separators=(",", ":"))


def loads(text: str) -> Any:
    """Decode a text made by `dumps`."""
    return _untag(json.loads(text))


def _tag(value: Any) -> Any:
    """Encode `value` as JSON; values of types that JSON lacks are wrapped in an object with a single key, their tag."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"f": repr(float(value))}
    for kind, (letter, encode) in _TAGS.items():
        if isinstance(value, kind):
            return {letter: encode(value)}
    if isinstance(value, list):
        return [_tag(part) for part in value]
    if getattr(value, "shape", None) == () and hasattr(value, "item"):  # a numpy scalar
        return _tag(value.item())
    kind_name = type(value).__name__
    msg = f"a value of type {kind_name} is neither plain (str, number, bytes, time) nor a list, tuple, dict or set"
    raise NotPlain(msg, kind_name)


def _micros(value: datetime) -> int:
    if value.tzinfo is None:
        msg = f"datetime {value!r} has no time zone; times are UTC, give it one"
        raise NotPlain(msg)
    return (value - _EPOCH) // timedelta(microseconds=1)


_TAGS: dict[type, tuple[str, Callable[[Any], Any]]] = {
    tuple: ("t", lambda value: [_tag(part) for part in value]),
    dict: ("d", lambda value: [[_tag(k), _tag(v)] for k, v in value.items()]),
    bytes: ("b", lambda value: base64.b64encode(value).decode()),
    datetime: ("T", _micros),
    date: ("D", lambda value: value.isoformat()),
    Decimal: ("n", str),
    frozenset: ("S", lambda value: sorted((_tag(part) for part in value), key=json.dumps)),
    set: ("s", lambda value: sorted((_tag(part) for part in value), key=json.dumps)),
}
_UNTAGS: dict[str, Callable[[Any], Any]] = {
    "t": lambda content: tuple(_untag(part) for part in content),
    "d": lambda content: {_untag(k): _untag(v) for k, v in content},
    "b": base64.b64decode,
    "T": lambda content: _EPOCH + timedelta(microseconds=content),
    "D": date.fromisoformat,
    "n": Decimal,
    "S": lambda content: frozenset(_untag(part) for part in content),
    "s": lambda content: {_untag(part) for part in content},
    "f": float,
}


def _untag(value: Any) -> Any:
    if isinstance(value, dict):
        [(letter, content)] = value.items()
        return _UNTAGS[letter](content)
    if isinstance(value, list):
        return [_untag(part) for part in value]
    return value
