"""Keys and values of Kafka records: bytes, text, JSON or Avro, a column at a time."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from txstorm.errors import FailedException, SettingError, SpoutError

Raw = Sequence[bytes | None]


class Decoded(NamedTuple):
    """A column, and what could not be decoded: row → why; there is a null in its place."""

    column: pa.Array | list[Any]
    bad: Mapping[int, str]


class Decoder(Protocol):
    """Turns the bytes of one column into values; shipped to the workers."""

    def check(self) -> None:
        """Called before anything is written; raises `SpoutError` when something it needs is not there."""

    def column(self, raw: Raw) -> Decoded:
        """The values of `raw`; None stays None."""


class Bytes:
    """Leaves them as they are."""

    def check(self) -> None:
        """Nothing to look at."""

    def column(self, raw: Raw) -> Decoded:
        """A binary column."""
        return Decoded(pa.array(raw, pa.binary()), {})


class Text:
    """UTF-8."""

    def check(self) -> None:
        """Nothing to look at."""

    def column(self, raw: Raw) -> Decoded:
        """A column of strings."""
        try:
            return Decoded(pa.array(raw, pa.binary()).cast(pa.string()), {})
        except pa.ArrowInvalid:
            values, bad = _one_by_one(raw, bytes.decode)
            return Decoded(pa.array(values, pa.string()), bad)


class Each:
    """Decodes value by value with a function of bytes, which raises ValueError for what is none.

    Args:
        decode: is shipped to the workers.
    """

    def __init__(self, decode: Callable[[bytes], Any]) -> None:
        self._decode = decode

    def check(self) -> None:
        """Nothing to look at."""

    def column(self, raw: Raw) -> Decoded:
        """A list of values."""
        return Decoded(*_one_by_one(raw, self._decode))


class Avro:
    """Avro values whose schemas are in a schema registry, in Confluent's wire format. Needs the extra ``avro``.

    Records become dicts. Schemas may refer to others. Each worker asks for each schema once.

    Args:
        registry: URL of the registry.
        auth: user and password.
        ca_file: PEM file of its certificate authority.

    Raises:
        SettingError: the URL cannot be one.
        MissingDependency: fastavro is not installed.
    """

    def __init__(self, registry: str, *, auth: tuple[str, str] | None = None, ca_file: str | None = None) -> None:
        from txstorm.clients.kafka.schema_registry import checked_url

        self._where = (checked_url(registry), auth, ca_file)
        self._registry: Any = None

    def __getstate__(self) -> dict[str, Any]:
        # A worker asks for itself: what was fetched here is not shipped.
        return {"_where": self._where, "_registry": None}

    def _opened(self) -> Any:
        from txstorm.clients.kafka.schema_registry import SchemaRegistry

        if self._registry is None:
            self._registry = SchemaRegistry(*self._where)
        return self._registry

    def check(self) -> None:
        """Ask the registry whether it is there."""
        self._opened().check()

    def column(self, raw: Raw) -> Decoded:
        """A list of values."""
        return Decoded(*_one_by_one(raw, self._opened().decode))


DECODERS: Mapping[str, Callable[[], Decoder]] = {"bytes": Bytes, "utf-8": Text, "json": lambda: Each(json.loads)}


def decoder(chosen: Any, what: str) -> Decoder:
    """The decoder of `what` (key or value) that the user has chosen: a name, a function of bytes, or a decoder."""
    if isinstance(chosen, str) and chosen in DECODERS:
        return DECODERS[chosen]()
    if hasattr(chosen, "column") and hasattr(chosen, "check"):
        found: Decoder = chosen
        return found
    if callable(chosen):
        return Each(chosen)
    msg = f"kafka spout: {what} is {chosen!r}, expected one of {list(DECODERS)}, Avro(…) or a function of bytes"
    raise SettingError(msg)


def _one_by_one(raw: Raw, decode: Callable[[bytes], Any]) -> tuple[list[Any], dict[int, str]]:
    values: list[Any] = []
    bad: dict[int, str] = {}
    for row, data in enumerate(raw):
        value = None
        if data is not None:
            try:
                value = decode(data)
            except (FailedException, SpoutError):
                raise  # not of this record: the registry is away, or refuses
            except Exception as error:  # noqa: BLE001 - a function of the user's; the record is to blame
                bad[row] = f"{type(error).__name__}: {error}"
        values.append(value)
    return values, bad
