"""Copies of the values that pass between user code and the framework: neither side keeps an object of the other."""

from __future__ import annotations

from typing import Any

_PLAIN = frozenset({str, int, float, bool, bytes, type(None)})


def copied(value: Any) -> Any:
    """A copy of `value` that shares no dict, list or set with it, at any depth; other objects are not copied."""
    kind = type(value)
    if kind is dict:
        return {key: inner if type(inner) in _PLAIN else copied(inner) for key, inner in value.items()}
    if kind is list:
        return [inner if type(inner) in _PLAIN else copied(inner) for inner in value]
    if kind is tuple:
        return tuple(map(copied, value))
    return set(value) if kind is set else value
