"""Tuples as bolts see them: a tuple of values with named fields, and its origin."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from txstorm.api.attempt import TransactionAttempt


class Fields(tuple[str, ...]):
    """The field names of a stream, in order: ``Fields("word", "n")``."""

    __slots__ = ()

    def __new__(cls, *names: str) -> Fields:
        """Create the fields from their names, one argument each."""
        return super().__new__(cls, names)


@dataclass(frozen=True)
class Origin:
    """Source of a record batch: attempt, component, stream, task and fields; shared by all its tuples."""

    attempt: TransactionAttempt
    component: str
    stream: str
    task: int
    fields: tuple[str, ...]
    index: dict[str | int, int] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        named = {name: i for i, name in enumerate(self.fields)}
        object.__setattr__(self, "index", {**{i: i for i in range(len(self.fields))}, **named})


class Tuple:
    """One tuple, read by field or position: ``tuple["word"]``, ``tuple[0]``, ``tuple.values``."""

    __slots__ = ("_origin", "values")

    def __init__(self, values: tuple[Any, ...], origin: Origin) -> None:
        self.values = values
        self._origin = origin

    def __getitem__(self, key: str | int) -> Any:
        try:
            return self.values[self._origin.index[key]]
        except (KeyError, TypeError):
            pass
        return self._sliced(key)

    def _sliced(self, key: Any) -> Any:
        """Look up values by negative index or slice, as in a list; raise `KeyError` for an unknown field."""
        if not isinstance(key, str):
            with suppress(IndexError):
                return self.values[key]
        raise KeyError(f"no field {key!r} in a tuple of {self.source_component!r}; it has {list(self._origin.fields)}")

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values)

    def __contains__(self, name: object) -> bool:
        return name in self._origin.fields

    def __repr__(self) -> str:
        pairs = ", ".join(f"{name}={value!r}" for name, value in self.as_dict().items())
        return f"Tuple({self.source_component}/{self.source_stream} {self.attempt}: {pairs})"

    @property
    def attempt(self) -> TransactionAttempt:
        """The transaction attempt to which this tuple belongs."""
        return self._origin.attempt

    @property
    def fields(self) -> tuple[str, ...]:
        """The field names, in order."""
        return self._origin.fields

    @property
    def source_component(self) -> str:
        """The id of the component that emitted this tuple."""
        return self._origin.component

    @property
    def source_stream(self) -> str:
        """The stream on which this tuple was emitted."""
        return self._origin.stream

    @property
    def source_task(self) -> int:
        """The index of the emitting task within its component."""
        return self._origin.task

    def as_dict(self) -> dict[str, Any]:
        """Return the values keyed by field name: ``{field: value}``."""
        return dict(zip(self._origin.fields, self.values, strict=True))

    def getValue(self, index: int) -> Any:  # noqa: N802 - Storm's name
        """Storm's spelling of ``tuple[index]``."""
        return self.values[index]

    def getValueByField(self, name: str) -> Any:  # noqa: N802 - Storm's name
        """Storm's spelling of ``tuple[name]``."""
        return self[name]

    getString = getInteger = getLong = getDouble = getBoolean = getValue  # noqa: N815
    getStringByField = getIntegerByField = getLongByField = getValueByField  # noqa: N815
    getDoubleByField = getBooleanByField = getValueByField  # noqa: N815

    def getValues(self) -> tuple[Any, ...]:  # noqa: N802 - Storm's name
        """Storm's spelling of `values`."""
        return self.values

    def getFields(self) -> tuple[str, ...]:  # noqa: N802 - Storm's name
        """Storm's spelling of `fields`."""
        return self.fields

    def getSourceComponent(self) -> str:  # noqa: N802 - Storm's name
        """Storm's spelling of `source_component`."""
        return self.source_component

    def getSourceStreamId(self) -> str:  # noqa: N802 - Storm's name
        """Storm's spelling of `source_stream`."""
        return self.source_stream

    def getSourceTask(self) -> int:  # noqa: N802 - Storm's name
        """Storm's spelling of `source_task`."""
        return self.source_task

    def size(self) -> int:
        """Storm's spelling of ``len(tuple)``."""
        return len(self.values)
