"""Entries: a saved state as an Arrow table of texts, so that a million keys need no Python object each.

A state that is a JSON object is a table with the columns ``key`` and ``state``, one row per member, the value as JSON;
any other state is one row of the column ``state``. The rows of a monoid bolt's table become members of one object: a
key of one text column is the text itself, any other key is the JSON of its value, or of the list of its values.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from txstorm.errors import InputError
from txstorm.misfits import Misfit, shown
from txstorm.results.read import json_value
from txstorm.typed import ARROW_ERRORS, column_of

KEY, STATE = "key", "state"
OBJECT = pa.schema([(KEY, pa.string()), (STATE, pa.string())])
VALUE = pa.schema([(STATE, pa.string())])
ESCAPE = "\0"
"""Begins the text of a key that is None, and once more that of a text that begins with it."""


def entries_of(state: Any) -> pa.Table:
    """Return the entries of a JSON value; raise `InputError` if it is none."""
    try:
        if isinstance(state, Mapping):
            if strange := [key for key in state if not isinstance(key, str)]:
                raise TypeError(f"the key {strange[0]!r} is no text")
            return _table([list(state), [_json(one) for one in state.values()]], OBJECT)
        return _table([[_json(state)]], VALUE)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"a saved state is a JSON value, got {shown(state)}: {error}") from error


def state_of(entries: pa.Table) -> Any:
    """Return the JSON value of entries; raise `ValueError` if a text is no JSON."""
    texts = entries[STATE].to_pylist()
    if not is_object(entries):
        return json.loads(texts[0])
    return dict(zip(entries[KEY].to_pylist(), map(json.loads, texts), strict=True))


def is_object(entries: pa.Table) -> bool:
    """Return whether the entries are those of a JSON object."""
    return KEY in entries.column_names


def entries_text(entries: pa.Table) -> str:
    """Return the JSON value of entries as text, without parsing it."""
    texts = entries[STATE].to_pylist()
    if not is_object(entries):
        return str(texts[0])
    pairs = zip(entries[KEY].to_pylist(), texts, strict=True)
    return "{" + ", ".join(f"{json.dumps(key)}: {text}" for key, text in pairs) + "}"


def keyed_entries(rows: pa.Table, keys: Sequence[str], column: str, *, as_json: bool) -> pa.Table:
    """Return the entries of rows of a table of states.

    Args:
        rows: the columns of the key, and the state.
        keys: names of the columns of the key.
        column: name of the column of the state.
        as_json: whether the states are stored as JSON already.
    """
    columns = [rows[name].combine_chunks() for name in keys]
    return pa.table([_key_texts(columns), state_texts(rows[column], as_json=as_json)], schema=OBJECT)


def keyed_rows(entries: pa.Table, keys: Sequence[pa.Field], state: pa.Field, *, as_json: bool) -> pa.Table:
    """Return the rows whose entries `keyed_entries` returns; raise `InputError` if they do not fit the types."""
    texts = entries[KEY]
    if len(keys) == 1 and pa.types.is_string(keys[0].type):
        columns = [_without_escapes(texts)]
    elif len(keys) == 1:
        columns = [_values(texts, keys[0].type)]
    else:
        parts = [_list(text, len(keys)) for text in texts.to_pylist()]
        columns = [_column([part[at] for part in parts], field.type) for at, field in enumerate(keys)]
    columns.append(states(entries, state, as_json=as_json))
    return pa.table(columns, schema=pa.schema([*keys, state]))


def state_texts(column: pa.ChunkedArray, *, as_json: bool) -> pa.ChunkedArray:
    """Return stored states as JSON texts."""
    return pc.fill_null(column, "null") if as_json else _texts(column)


def states(entries: pa.Table, field: pa.Field, *, as_json: bool) -> pa.ChunkedArray:
    """Return the stored states of entries; raise `InputError` if they do not fit the column."""
    if not as_json:
        return _values(entries[STATE], field.type)
    for text in entries[STATE].to_pylist():
        _parsed(text)
    return entries[STATE]


def _table(columns: Sequence[Any], schema: pa.Schema) -> pa.Table:
    return pa.table([pa.array(one, pa.string()) for one in columns], schema=schema)


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, allow_nan=False)


def _texts(column: Any) -> Any:
    """Return the values of a column as JSON."""
    if pa.types.is_integer(column.type) or pa.types.is_boolean(column.type):
        return pc.fill_null(column.cast(pa.string()), "null")
    return pa.array([_json(json_value(one)) for one in column.to_pylist()], pa.string())


def _key_texts(columns: Sequence[pa.Array]) -> pa.Array:
    if len(columns) > 1:
        lists = zip(*(column.to_pylist() for column in columns), strict=True)
        return pa.array([_json(json_value(list(one))) for one in lists], pa.string())
    (column,) = columns
    if not pa.types.is_string(column.type):
        return _texts(column)
    escaped = pc.starts_with(column, ESCAPE)
    if column.null_count or pc.any(escaped).as_py():
        column = pc.if_else(escaped, pc.binary_join_element_wise(ESCAPE, column, ""), column)
        return pc.fill_null(column, ESCAPE)
    return column


def _without_escapes(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    escaped = pc.starts_with(texts, ESCAPE)
    if not pc.any(escaped).as_py():
        return texts
    texts = pc.if_else(pc.equal(texts, ESCAPE), None, texts)
    return pc.if_else(pc.starts_with(texts, ESCAPE), pc.utf8_slice_codeunits(texts, 1), texts)


def _values(texts: pa.ChunkedArray, kind: pa.DataType) -> Any:
    """Return JSON texts as values of the type `kind`."""
    if pa.types.is_integer(kind):
        try:
            return pc.if_else(pc.equal(texts, "null"), None, texts).cast(kind)
        except pa.ArrowInvalid as error:
            raise _unfit(kind, error) from error
    return _column([_parsed(text) for text in texts.to_pylist()], kind)


def _column(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    try:
        return column_of([_typed(one, kind) for one in values], kind)
    except (Misfit, TypeError, ValueError, ArithmeticError, KeyError, AttributeError, *ARROW_ERRORS) as error:
        raise _unfit(kind, error) from error


def _typed(value: Any, kind: pa.DataType) -> Any:
    """Return the value of the type `kind` whose `json_value` is given."""
    if value is None:
        return None
    if pa.types.is_list(kind):
        return [_typed(one, kind.value_type) for one in value]
    if pa.types.is_struct(kind):
        types = {kind.field(at).name: kind.field(at).type for at in range(kind.num_fields)}
        return {name: _typed(one, types[name]) for name, one in value.items()}
    reads = next((read for fits, read in _READS if fits(kind)), None)
    return value if reads is None else reads(value)


_READS: Sequence[tuple[Callable[[pa.DataType], bool], Callable[[Any], Any]]] = (
    (pa.types.is_binary, lambda value: base64.b64decode(value, validate=True)),
    (pa.types.is_timestamp, datetime.fromisoformat),
    (pa.types.is_date, date.fromisoformat),
    (pa.types.is_decimal, Decimal),
    (pa.types.is_floating, float),
)


def _list(text: str, size: int) -> list[Any]:
    found = _parsed(text)
    if not isinstance(found, list) or len(found) != size:
        raise InputError(f"expected a key of {size} columns, got {text[:80]!r}")
    return found


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"expected JSON, got {text[:80]!r}") from error


def _unfit(kind: pa.DataType, error: Exception) -> InputError:
    return InputError(f"expected values of the type {kind}: {error}")
