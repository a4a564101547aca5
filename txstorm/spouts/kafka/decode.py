"""Decoders for keys and values of Kafka records: bytes, text, JSON or Avro, a column at a time; JSON also as fields."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from typing import Any, NamedTuple

import pyarrow as pa

from txstorm.errors import FailedException, SettingError, SpoutError
from txstorm.misfits import Misfit
from txstorm.spouts.json_objects import JsonObjects, declared_types

Raw = Sequence[bytes | None]


class Decoded(NamedTuple):
    """A decoded column, and the rows that could not be decoded: null in the column, with a mapping row → reason.

    A reason may be a `Misfit`, which knows the field whose declared type does not fit.
    """

    column: pa.Array | list[Any]
    bad: Mapping[int, str | Misfit]


class Decoder:
    """Base of the decoders of a column of bytes, which are shipped to the workers."""

    def check(self) -> None:
        """Check the requirements, if any, before anything is written; raise `SpoutError` if one is missing."""

    def column(self, raw: Raw) -> Decoded:
        """Decode `raw`; None stays None."""
        raise NotImplementedError


class Bytes(Decoder):
    """Decoder that leaves bytes as they are."""

    def column(self, raw: Raw) -> Decoded:
        """Return a binary column."""
        return Decoded(pa.array(raw, pa.binary()), {})


class Text(Decoder):
    """Decoder of UTF-8 text."""

    def column(self, raw: Raw) -> Decoded:
        """Return a column of strings."""
        try:
            return Decoded(pa.array(raw, pa.binary()).cast(pa.string()), {})
        except pa.ArrowInvalid:
            values, bad = _one_by_one(raw, bytes.decode)
            return Decoded(pa.array(values, pa.string()), bad)


class Each(Decoder):
    """Decoder that calls a function for the bytes of every value; the function raises if it cannot decode them."""

    def __init__(self, decode: Callable[[bytes], Any]) -> None:
        self._decode = decode

    def column(self, raw: Raw) -> Decoded:
        """Return a list of values."""
        return Decoded(*_one_by_one(raw, self._decode))


class Avro(Decoder):
    """Decoder of Avro values in Confluent's wire format, with schemas in a schema registry. Needs the extra ``avro``.

    Records become dicts. Schemas may refer to others. Each worker fetches each schema once.

    Args:
        registry: URL of the registry.
        auth: user and password.
        ca_file: PEM file of the certificate authority of the registry.

    Raises:
        SettingError: the URL is invalid.
        MissingDependency: fastavro is not installed.
    """

    def __init__(self, registry: str, *, auth: tuple[str, str] | None = None, ca_file: str | None = None) -> None:
        from txstorm.clients.kafka.schema_registry import checked_url

        self._where = (checked_url(registry), auth, ca_file)
        self._registry: Any = None

    def __getstate__(self) -> dict[str, Any]:
        # Each worker fetches the schemas itself: the cache here is not shipped.
        return {"_where": self._where, "_registry": None}

    def _opened(self) -> Any:
        from txstorm.clients.kafka.schema_registry import SchemaRegistry

        if self._registry is None:
            self._registry = SchemaRegistry(*self._where)
        return self._registry

    def check(self) -> None:
        """Check that the registry answers; raise `SpoutError` if not."""
        self._opened().check()

    def column(self, raw: Raw) -> Decoded:
        """Return a list of values."""
        return Decoded(*_one_by_one(raw, self._opened().decode))


class Fields(Decoder):
    """Decoder of JSON objects with fields of declared types, which records have in place of the value.

    Attributes:
        objects: the reader of objects.
    """

    def __init__(self, types: Mapping[str, Any]) -> None:
        self.objects = JsonObjects(declared_types(types, "kafka spout: value"))

    def only(self, fields: Collection[str]) -> Fields:
        """Return a decoder of those among `fields`, the only ones of which types are then checked."""
        made = copy(self)
        made.objects = JsonObjects({name: kind for name, kind in self.objects.types.items() if name in fields})
        return made

    def column(self, raw: Raw) -> Decoded:
        """Return a struct column; a record without an object is bad, too."""
        batch, bad = self.objects.read(raw)
        return Decoded(batch.to_struct_array(), bad)


DECODERS: Mapping[str, Callable[[], Decoder]] = {"bytes": Bytes, "utf-8": Text, "json": lambda: Each(json.loads)}


def decoder(chosen: Any, what: str) -> Decoder:
    """Return the decoder for `what` ("key" or "value").

    `chosen` is a name, a function of bytes, a decoder, or for values a mapping field → type.
    """
    if isinstance(chosen, Mapping) and what == "value":
        return Fields(chosen)
    if isinstance(chosen, str) and chosen in DECODERS:
        return DECODERS[chosen]()
    if hasattr(chosen, "column") and hasattr(chosen, "check"):
        found: Decoder = chosen
        return found
    if callable(chosen):
        return Each(chosen)
    types = ", types of fields" if what == "value" else ""
    msg = f"kafka spout: {what} is {chosen!r}, expected one of {list(DECODERS)}{types}, Avro(…) or a function of bytes"
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
                raise  # not an error of this record: the registry is unavailable, or refuses the request
            except Exception as error:  # noqa: BLE001 - a user's function: any exception is an error of the record
                bad[row] = f"{type(error).__name__}: {error}"
        values.append(value)
    return values, bad
