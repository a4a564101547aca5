"""The state of a stateful bolt in a Delta table of the topology (provider ``delta``)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from json.encoder import encode_basestring_ascii
from typing import Any, Protocol

import pyarrow as pa

from txstorm.api.state import KeyedState, KeyTexts, StateHandle, arrow_type, form_of_keys
from txstorm.errors import StateError
from txstorm.keys import plain
from txstorm.misfits import shown
from txstorm.stateful.key_values import Form, KeySerializer, ManagedKeyValueState
from txstorm.tagged import text_of, value_of

TASK, KEY, VALUE = "task", "key", "value"
KEYS, VALUES, TEXT = "keys", "values", "text"
"""What is fixed of a state: the forms of its keys and values, text or a type."""
_ABSENT = object()
_IMMUTABLE = frozenset({str, int, float, bool, bytes})


class ScannedHandle(StateHandle, Protocol):
    """Handle of a keyed state that can also return all of it."""

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Yield (key, value) of all keys as they were before this txid."""


class _Text(str):
    """The text form of a mutable value, as opposed to a value that is a string."""

    __slots__ = ()


def state_table(name: str, *, shared: bool, key_type: Any, value_type: Any, tasks: int) -> KeyedState:
    """Return the declaration of the table that holds the state of the component `name`.

    Text and strings as they are have one type of column, so what is fixed names the form.
    """
    key = {KEY: str if key_type is None else key_type}
    value = {VALUE: str if value_type is None else value_type}
    kinds = {KEYS: key_type, VALUES: value_type}
    fixed = {fact: TEXT if kind is None else str(arrow_type(kind)) for fact, kind in kinds.items()}
    texts = KeyTexts(KEY) if key_type is None else None
    columns = key if shared else {TASK: int, **key}
    return KeyedState(
        name, columns, value, tasks=None if shared else tasks, fixed=fixed, derive=stored_form, key_texts=texts
    )


def _public(value: Any) -> Any:
    """Return a value that is kept here, as the user gets it: changing it changes nothing without a put."""
    kind = type(value)
    return value if kind in _IMMUTABLE else value_of(value) if kind is _Text else deepcopy(value)


def stored_form(rows: pa.Table) -> dict[str, str]:
    """Return the form of keys and values, as far as some rows of the table show it; see `state_table`.

    Texts that are no tagged text are strings as they are; one with quotes is as good as never a string as it is.
    """
    found = {}
    for fact, name in ((KEYS, KEY), (VALUES, VALUE)):
        kind = rows.schema.field(name).type
        texts = [text for text in rows[name].to_pylist() if text is not None] if pa.types.is_string(kind) else []
        if not pa.types.is_string(kind) or not all(map(_is_tagged, texts)):
            found[fact] = str(kind)
        elif any(text.startswith('"') for text in texts):
            found[fact] = TEXT
    return found


def _is_tagged(text: str) -> bool:
    try:
        value_of(text)
    except (ValueError, TypeError, KeyError, RecursionError):
        return False
    return True


class TableKeyValueState(ManagedKeyValueState):
    """Key-value state of one task in one txid, over the handle of a keyed state; written to it by `flush`.

    Args:
        where: component, task and txid, for messages.
        handle: the handle of the keyed state.
        task: the task's index; None if all tasks share the state.
        kinds: the declared types of keys and of values; None: they are stored as text.
        previous: the txid before this one.
    """

    def __init__(
        self,
        where: str,
        handle: ScannedHandle,
        *,
        task: int | None,
        kinds: tuple[Any, Any],
        previous: int,
    ) -> None:
        self._where = where
        self._handle = handle
        self._task = task
        self._typed_key, self._typed_value = (kind is not None for kind in kinds)
        self._form = Form(KeySerializer(form_of_keys(handle)))
        self._read: dict[Any, Any] = {}
        self._written: dict[Any, Any] = {}
        self._writes = 0
        self._prefetches = kinds[0] in (None, str)
        self._previous = previous

    def put(self, key: Any, value: Any) -> None:
        """Set the value of `key`."""
        if type(key) is str and type(value) in _IMMUTABLE:  # the usual case, with as few steps as possible
            self._written[key] = value
            self._writes += 1
            return
        if value is None:
            self._form.value(None, key, self._where)
        name = key if type(key) is str else self._name(key)
        if type(value) not in _IMMUTABLE:
            value = deepcopy(value) if self._typed_value else _Text(self._form.value(value, key, self._where).decode())
        self._written[name] = value
        self._writes += 1

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the value of `key`; `default`, which is not stored, if it has none."""
        name = key if type(key) is str else self._name(key)
        found = self._written.get(name, _ABSENT)
        if found is _ABSENT:
            found = self._read.get(name, _ABSENT)
            if found is _ABSENT:
                found = self._read[name] = self._fetched(self._handle.get(self._row(name)))
        return default if found is None else _public(found)

    def delete(self, key: Any) -> Any:
        """Remove `key`; return the value it had, None if it had none."""
        found = self.get(key)
        self._written[key if type(key) is str else self._name(key)] = None
        self._writes += 1
        return found

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        """Yield (key, value) for each key, own writes included; reads the whole state."""
        writes, written = self._writes, dict(self._written)
        for key, value in self._all(written):
            if self._writes != writes:
                raise StateError(
                    f"{self._where} was changed while it was iterated; iterate over list(state) to change it meanwhile"
                )
            yield self._key(key), _public(value)

    def _all(self, written: Mapping[Any, Any]) -> Iterator[tuple[Any, Any]]:
        for row, value in self._handle.items():
            key = row
            if self._task is not None:
                task, key = row
                if task != self._task:
                    continue
            if not self._typed_key:
                key = self._name(value_of(key))
            if key not in written:
                yield key, self._fetched(value)
        for key, value in written.items():
            if value is not None:
                yield key, value

    def prefetch(self, keys: Iterable[Any]) -> None:
        """Read the values of those `keys` that the state may be asked for, in one call."""
        if self._prefetches and (names := {key for key in keys if type(key) is str}):
            rows = {name: self._row(name) for name in names}
            found = self._handle.get_many(rows.values())
            self._read.update((name, self._fetched(found.get(row))) for name, row in rows.items())

    def flush(self) -> None:
        """Write all changes to the handle."""
        puts = {self._row(key): self._stored(value) for key, value in self._written.items() if value is not None}
        removed = [self._row(key) for key, value in self._written.items() if value is None]
        if removed:
            self._handle.remove_many(removed)
        if puts:
            self._handle.put_many(puts)

    def last_committed(self) -> int | None:
        """Return the txid before the one at hand; None in the first one."""
        return self._previous or None

    def _refused(self, call: str) -> StateError:
        return StateError(
            f"{self._where}: {call} called by the bolt; the topology saves the state with each transaction"
        )

    def _name(self, key: Any) -> Any:
        """Return the name under which a key is kept here: itself if it is a string or typed, else its text."""
        if isinstance(key, str):
            return str.__str__(key)
        if not self._typed_key:
            return (self._form.key(key, self._where).decode(),)
        key = plain(key)
        if isinstance(key, bool | float):  # otherwise True and 1.0 would be the key 1
            self._handle.get(self._row(key))
        if not isinstance(key, tuple | list | dict | set):
            return key
        msg = f"{self._where}: key {shown(key)} is a {type(key).__name__}, expected a value of the declared key_type"
        raise StateError(msg)

    def _key(self, name: Any) -> Any:
        """Return the user's key of a name."""
        return value_of(name[0]) if type(name) is tuple else name

    def _row(self, name: Any) -> Any:
        """Return the key of a name in the table."""
        if not self._typed_key:
            name = name[0] if type(name) is tuple else encode_basestring_ascii(name)
        return name if self._task is None else (self._task, name)

    def _fetched(self, value: Any) -> Any:
        """Return a value of the table as it is kept here; the text of a mutable value stays text."""
        if value is None or self._typed_value:
            return value
        if value.isdecimal():
            return int(value)
        return _Text(value) if value[0] in "[{" else value_of(value)

    def _stored(self, value: Any) -> Any:
        """Return a value as it is put into the table."""
        if self._typed_value:
            return value
        return str(value) if type(value) in (int, _Text) else text_of(value, VALUE)
