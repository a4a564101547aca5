"""Tagged text: a lossless JSON text for every value that a tuple can have.

Values of types that JSON lacks are wrapped in an object with a single key, their tag.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

from txstorm.errors import EmitError

MOST_BITS = 14_284
"""Bits of the greatest int: it has 4,300 digits, the most that Python writes and reads."""
MARK = {b"txstorm": b"tagged-json"}
"""Metadata of an Arrow field whose values are tagged texts."""
_text = json.JSONEncoder(separators=(",", ":")).encode  # `json.dumps` would make an encoder for each value
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST, _LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


def check_aware(value: datetime | None, name: str) -> None:
    """Raise `EmitError` if `value` is a datetime without time zone."""
    if value is not None and value.tzinfo is None:
        raise EmitError(f"field {name!r}: datetime {value!r} has no time zone; times are UTC, give it one")


def no_time(value: Any, name: str) -> EmitError:
    """Return the error for a time or date that Python does not have, or has only in another zone than UTC."""
    return EmitError(f"field {name!r}: {value} is out of the years 1 to 9999 in UTC, the times that can be sent")


def text_of(value: Any, name: str) -> str:
    """Encode `value` as text; raise `EmitError`, naming the field `name`, if it cannot be."""
    return _text(tag(value, name))


def tag(value: Any, name: str) -> Any:
    """Encode `value` as JSON; values of types that JSON lacks are wrapped in an object with a single key, their tag."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)  # not what an enumeration calls it
    if isinstance(value, int):
        if value.bit_length() > MOST_BITS:
            msg = f"field {name!r}: an int of {value.bit_length():,} bits, expected at most {MOST_BITS:,}; send a text"
            raise EmitError(msg)
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value) if math.isfinite(value) else {"f": repr(float.__float__(value))}
    for kind, (letter, encode) in _TAGS.items():
        if isinstance(value, kind):
            return {letter: encode(value, name)}
    if isinstance(value, list):
        return [tag(part, name) for part in value]
    if getattr(value, "shape", None) == () and hasattr(value, "item"):  # a numpy scalar
        return tag(value.item(), name)
    kind_name = type(value).__name__
    raise EmitError(
        f"field {name!r}: a value of type {kind_name} cannot be sent to another task; emit plain values, lists or dicts"
    )


def _micros(value: datetime, name: str) -> int:
    check_aware(value, name)
    if not _FIRST <= value <= _LAST:
        raise no_time(value, name)
    return (value - _EPOCH) // timedelta(microseconds=1)


_TAGS: dict[type, tuple[str, Callable[[Any, str], Any]]] = {
    tuple: ("t", lambda value, name: [tag(part, name) for part in value]),
    dict: ("d", lambda value, name: [[tag(k, name), tag(v, name)] for k, v in value.items()]),
    bytes: ("b", lambda value, _: base64.b64encode(value).decode()),
    datetime: ("T", _micros),
    date: ("D", lambda value, _: value.isoformat()),
    Decimal: ("n", lambda value, _: Decimal.__str__(value)),
    frozenset: ("S", lambda value, name: sorted((tag(part, name) for part in value), key=json.dumps)),
    set: ("s", lambda value, name: sorted((tag(part, name) for part in value), key=json.dumps)),
}
_UNTAGS: dict[str, Callable[[Any], Any]] = {
    "t": lambda content: tuple(untag(part) for part in content),
    "d": lambda content: {untag(k): untag(v) for k, v in content},
    "b": lambda content: binascii.a2b_base64(content, strict_mode=True),
    "T": lambda content: _EPOCH + timedelta(microseconds=content),
    "D": date.fromisoformat,
    "n": Decimal,
    "S": lambda content: frozenset(untag(part) for part in content),
    "s": lambda content: {untag(part) for part in content},
    "f": float,
}


def value_of(text: str) -> Any:
    """Decode the text of one value."""
    return untag(json.loads(text))


def untag(value: Any) -> Any:
    """Decode a value that `tag` has encoded."""
    if isinstance(value, dict):
        [(letter, content)] = value.items()
        return _UNTAGS[letter](content)
    if isinstance(value, list):
        return [untag(part) for part in value]
    return value
