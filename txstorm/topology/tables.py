"""The tables a user's bolt declares by having them as attributes."""

from __future__ import annotations

from types import MemberDescriptorType
from typing import Any, TypeVar

from txstorm.api.external import MapState
from txstorm.api.outlets import Outlet
from txstorm.api.state import KeyedState, SinkTable

Table = TypeVar("Table", KeyedState, SinkTable, MapState, Outlet)


def found_tables(bolt: Any, kind: type[Table]) -> tuple[Table, ...]:
    """The tables of `kind` among the attributes of `bolt`: class attributes first, the instance's over them.

    An attribute may hold one table or a tuple or list of them; the same declaration found twice counts once.
    """
    attributes: dict[str, Any] = {}
    for base in reversed(type(bolt).__mro__):
        attributes.update(vars(base))
    attributes.update(getattr(bolt, "__dict__", {}))
    found: list[Table] = []
    for name, value in attributes.items():
        for one in _flat(getattr(bolt, name, None) if isinstance(value, MemberDescriptorType) else value):
            if isinstance(one, kind) and one not in found:
                found.append(one)
    return tuple(found)


def _flat(value: Any) -> tuple[Any, ...]:
    return tuple(value) if type(value) in (tuple, list) else (value,)
