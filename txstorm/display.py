"""Results that print as short tables in an interactive session, and are dicts in code."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Facts(dict[str, Any]):
    """A dict that prints as a table with two columns: name and value."""

    def __init__(self, title: str, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self._title = title

    def __repr__(self) -> str:
        return facts(self._title, self)

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


def facts(title: str, values: Mapping[str, Any]) -> str:
    """Format `title`, then one line with name and value for each entry of `values` that is not None."""
    texts = {name: _text(value) for name, value in values.items() if value is not None}
    width = max(map(len, texts), default=0)
    return "\n".join([title, *(f"  {name:<{width}}  {text}".rstrip() for name, text in texts.items())])


def time_of(micros: int) -> str:
    """Format UTC microseconds since 1970 as a timestamp."""
    return f"{_EPOCH + timedelta(microseconds=micros):%Y-%m-%d %H:%M:%S.%f} UTC"


def _text(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int):
        return (
            ", ".join(f"{name} {_text(inner)}" for name, inner in value.items())
            if isinstance(value, Mapping)
            else str(value)
        )
    return f"{value:,}"


def duration_text(duration: timedelta) -> str:
    """Return a duration for a reader, such as ``1 day`` or ``0:00:20``."""
    return str(duration).removesuffix(", 0:00:00")
