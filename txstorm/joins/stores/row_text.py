"""Stored form of rows and keys: tagged JSON, and the canonical bytes of keys and ids."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from operator import attrgetter
from typing import Any

from pydantic_core import PydanticSerializationError, from_json, to_json

from txstorm import keys
from txstorm.api.join_store import StoreRow
from txstorm.errors import InputError, StateError
from txstorm.misfits import shown
from txstorm.tagged import tag, untag

MAX_KEY_BYTES = 65_536
MAX_ROW_BYTES = 16 << 20
MAX_TIME = (1 << 63) - 1
_PLAIN = frozenset((str, int, bool, type(None)))
_BY_TIME = attrgetter("time", "id")
_MIXED = frozenset((dict, list))
_WHOLE = ""
"""Only field of the stored form of a value that is no mapping of field names; it is in a list."""
DAMAGED = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""Errors of decoding something else than what was encoded."""


def key_bytes(key: Any, what: str = "key") -> bytes:
    """Return the canonical bytes of a key or id; equal ones have equal bytes, 1 and "1" not.

    Raises:
        StateError: a type that cannot be part of a key, or more than `MAX_KEY_BYTES`.
    """
    if isinstance(key, tuple):
        found = b"(" + keys.canonical(key)
    else:
        kind, content = keys.canonical_value(key)
        found = kind + content
    if len(found) > MAX_KEY_BYTES:
        raise StateError(
            f"join store: the {what} {str(key)[:40]!r}… has {len(found):,} bytes, expected at most {MAX_KEY_BYTES:,}; "
            "use a digest of it"
        )
    return found


def in_order(rows: Iterable[StoreRow]) -> list[StoreRow]:
    """Sort rows by (time, id); ids that cannot be compared, of several types or NaN, are sorted by their bytes."""
    found = list(rows)
    if len(found) > 1:
        try:
            found.sort(key=_BY_TIME if all(row.id == row.id for row in found) else _by_bytes)
        except (TypeError, ArithmeticError):
            found.sort(key=_by_bytes)
    return found


def _by_bytes(row: StoreRow) -> tuple[int, bytes]:
    return row.time, key_bytes(row.id)


def checked_time(row: StoreRow) -> int:
    """Return the time of `row`; raise `StateError` unless it is an int of 64 bits."""
    if type(row.time) is not int or not -MAX_TIME <= row.time <= MAX_TIME:
        raise StateError(
            f"join store: row {shown(row.id)} of key {shown(row.key)}: time {shown(row.time)}, expected an int, UTC "
            "microseconds"
        )
    return row.time


def plain_fields(row: StoreRow) -> dict[str, Any]:
    """Return the value of `row` as fields, with tags where JSON lacks the type."""
    value = row.value
    try:
        if not isinstance(value, Mapping) or _WHOLE in value or not all(type(name) is str for name in value):
            return {_WHOLE: [tag(value, "value")]}
        return {name: one if type(one) in _PLAIN else tag(one, name) for name, one in value.items()}
    except InputError as error:
        raise StateError(f"join store: row {row.id!r} of key {row.key!r}: {error}") from None


def plain_value(value: Any) -> Any:
    """Return a key or id in the one form of equal ones, tagged where JSON lacks the type."""
    return value if type(value) in _PLAIN else tag(keys.plain(value), "key")


def restored(value: Any) -> Any:
    """Return the key or id that `plain_value` has encoded, in the one form of equal ones whoever did."""
    return keys.plain(untag(value)) if type(value) in _MIXED else value


def restored_fields(fields: dict[str, Any]) -> Any:
    """Return the value that `plain_fields` has encoded; its fields are changed in place."""
    if _WHOLE in fields:
        [whole] = fields[_WHOLE]
        return untag(whole)
    for name, one in fields.items():
        if type(one) in _MIXED:
            fields[name] = untag(one)
    return fields


def encoded(document: Any) -> bytes:
    """Encode tagged JSON in one line of UTF-8; texts with lone surrogates are escaped."""
    try:
        return to_json(document)
    except PydanticSerializationError:
        return json.dumps(document, separators=(",", ":")).encode()


def decoded(data: bytes) -> Any:
    """Decode JSON; raise ValueError if it is none."""
    try:
        return from_json(data)
    except ValueError:
        return json.loads(data)  # lone surrogates, or no JSON at all


def row_parts(row: StoreRow) -> list[Any]:
    """Return ``[time, id, fields]`` of `row`, ready for JSON."""
    return [checked_time(row), plain_value(row.id), plain_fields(row)]


def rows_of(key: Any, found: list[list[Any]], *, plain: bool = False) -> list[StoreRow]:
    """Return the rows of `key` from their decoded ``[time, id, fields]``, in order.

    Args:
        key: the key that was asked for.
        found: the decoded parts; they are changed.
        plain: whether no id and no field has a tag.

    Raises:
        One of `DAMAGED`: something else was decoded.
    """
    if not plain:
        for parts in found:
            parts[2] = restored_fields(parts[2])
            if type(parts[1]) in _MIXED:
                parts[1] = untag(parts[1])
    if len(found) == 1:  # the usual case
        [(time, id_, fields)] = found
        return [StoreRow(key, id_, time, fields)]
    if plain:
        with suppress(TypeError):
            found.sort()
            return [StoreRow(key, id_, time, fields) for time, id_, fields in found]
    return in_order(StoreRow(key, id_, time, fields) for time, id_, fields in found)
