"""Look-up join: joins a stream with a Delta table of others, at a version that is pinned for each transaction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from txstorm.api.assembly import AssembledBolt, Assembly, Site
from txstorm.api.names import DEFAULT_STREAM, near
from txstorm.clients.external_table import ExternalTable
from txstorm.errors import InputError, StateError
from txstorm.joins.lookup.lookup_bolt import TABLE, Lookup, LookupPlan
from txstorm.joins.lookup.lookup_table import kind_of
from txstorm.joins.selection import LEFT, LEFT_ROWS, Selected, join_type
from txstorm.joins.side import Side, key_faults
from txstorm.typed import python_type
from txstorm.windows.rules.forms import Duration, duration

_TABLE_NAMES = (TABLE, "right")


class LookupJoin(AssembledBolt):
    """A bolt that joins a stream with an external Delta table.

    Example::

        join = LookupJoin("orders", "/data/customers", on="customer", how="left", refresh=Duration.minutes(1))
        builder.set_bolt("named", join, 4).local_or_shuffle_grouping("orders")

    The table's version is pinned when a transaction is planned, so that every task, attempt and replay of the
    transaction sees the same rows. It is a batch bolt: each process reads the version once, only the columns that are
    needed, and joins in the processing phase. Results are ordered by the tuples of the stream. A key with None matches
    nothing; a key that the table has several times gives several results.

    Args:
        left: the stream: a `Side`, of which only component, stream, key and types of the key count, the id of a
            component whose default stream it is, or a component and a stream.
        uri: the table: its directory, or a ``file:`` URI of it.
        on: the fields that must equal the columns of the same name, or field → column; None: the key of the side.
        how: ``inner``, ``left`` (None for columns of rows without a match), ``semi`` or ``anti`` (tuples with or
            without a match, as they are).
        select: fields of the results: ``left:field``, ``table:column``, or a name of either, of which the stream's
            comes first. None: all of both, those of `on` with the same name once. A name that occurs twice becomes
            ``stream_field`` and ``table_column``.
        refresh: the time, by stamps of transactions, after which a newer version is looked for; None: 1 s.

    Raises:
        InputError: an argument is wrong.
    """

    def __init__(
        self,
        left: Side | str | tuple[str, str],
        uri: str | Path,
        *,
        on: str | Sequence[str] | Mapping[str, str] | None = None,
        how: str = "inner",
        select: Sequence[str] | str | None = None,
        refresh: Duration | timedelta | None = None,
    ) -> None:
        self.left = _stream(left)
        self.types = dict(left.columns or {}) if isinstance(left, Side) else {}
        self.uri = _directory(uri)
        self.on = _pairs(left.key if on is None and isinstance(left, Side) else on)
        self.how = join_type("LookupJoin", how, LEFT_ROWS, "rows of the table come only with left rows")
        names = [select] if isinstance(select, str) else select
        if names is not None and not (names and all(isinstance(one, str) for one in names)):
            msg = f"LookupJoin: select: expected names of fields, such as ['left:id', 'table:name'], got {select!r}"
            raise InputError(msg)
        self.select = None if names is None else [one.strip() for text in names for one in text.split(",")]
        since = Duration.seconds(1) if refresh is None else duration(refresh, "LookupJoin: refresh", zero=True)
        self.refresh = since.microseconds

    def assemble(self, site: Site) -> Assembly:
        """Return the bolt that joins, which reads the columns of the table when it is built."""
        faults: list[str] = []
        fields = self._left_fields(site, faults)
        try:
            table = ExternalTable(Path(self.uri))
        except StateError as cause:
            absent = not Path(self.uri, "_delta_log").is_dir()
            remedy = "; create it before the topology is built" if absent else ""
            faults.append(f"LookupJoin: the table cannot be read: {cause}{remedy}")
            table = None
        columns = [] if table is None else table.schema.names
        types = {name: kind for one in site.inputs for name, kind in one.types.items()} | self.types
        if table is not None and fields:
            faults += self._join_faults(fields, types, table.schema)
        wanted = self._wanted(fields, columns, faults) if table is not None and fields else []
        if table is not None:
            faults += _type_faults(wanted, table.schema)
        plan = LookupPlan(
            id=site.id,
            uri=self.uri,
            on=self.on,
            kinds=tuple(kind_of(table.schema.field(name).type) if table is not None and name in columns else None
                        for name in self.on.values()),
            how=self.how,
            wanted=tuple(wanted),
            refresh=self.refresh,
            left_fields=fields,
            first={} if table is None else {"uri": self.uri, "id": table.id, "version": table.version},
        )  # fmt: skip
        return Assembly(Lookup(plan), tuple(faults))

    def results(self, left: Mapping[str, pa.DataType]) -> tuple[dict[str, pa.DataType], list[str]]:
        """Return the fields of the results with their types, given those of the stream, and the faults of the options.

        Raises:
            StateError: the table cannot be read.
        """
        schema = ExternalTable(Path(self.uri)).schema
        faults = list(self._join_faults(list(left), left, schema))
        wanted = self._wanted(list(left), schema.names, faults)
        kinds = (left[one.field] if one.side == LEFT else schema.field(one.field).type for one in wanted)
        return dict(zip((one.name for one in wanted), kinds, strict=True)), faults

    def _left_fields(self, site: Site, faults: list[str]) -> tuple[str, ...]:
        component, stream = self.left
        found: tuple[str, ...] | None = None
        for one in site.inputs:
            if (one.component, one.stream) != self.left:
                faults.append(f"LookupJoin: its input, {one.where}, is not the one that it joins; leave it out")
                continue
            found = one.fields or ()
            if one.grouping == "all" and site.parallelism > 1:
                faults.append(
                    f"LookupJoin: {one.where} goes to all tasks, so each would emit the results; use "
                    "local_or_shuffle_grouping"
                )
        if found is None:
            faults.append(
                f"LookupJoin: no input is stream {stream!r} of {component!r}; subscribe to it, such as with "
                f"local_or_shuffle_grouping({component!r}, {stream!r})"
            )
        return found or ()

    def _join_faults(self, fields: Sequence[str], types: Mapping[str, Any], schema: pa.Schema) -> Iterator[str]:
        for field, column in self.on.items():
            if field not in fields:
                yield _missing(f"LookupJoin: on: stream {self.left[1]!r} of {self.left[0]!r} has no field {field!r}",
                               field, fields)  # fmt: skip
            if column not in schema.names:
                yield _missing(f"LookupJoin: on: the table {self.uri} has no column {column!r}", column, schema.names)
            elif kind_of(schema.field(column).type) is None:
                kind = schema.field(column).type
                yield f"LookupJoin: on: column {column!r} has type {kind}, which cannot be a key; join by another one"
            else:
                pairs = [(field, _of_values(types.get(field)))], [(column, _of_values(schema.field(column).type))]
                yield from (f"LookupJoin: on: {fault}" for fault in key_faults(*pairs))

    # -- selected fields -----------------------------------------------------------------------------------------------

    def _wanted(self, fields: Sequence[str], columns: Sequence[str], faults: list[str]) -> list[Selected]:
        only_left = self.how in ("semi", "anti")
        if self.select is None:
            same = {column for field, column in self.on.items() if field == column}
            found = [Selected(name, LEFT, name) for name in fields]
            found += [Selected(name, TABLE, name) for name in columns if name not in same and not only_left]
        else:
            found = [one for text in self.select if (one := self._one(text, fields, columns, faults)) is not None]
        for one in found:
            if one.side == TABLE and only_left:
                faults.append(
                    f"LookupJoin: select: a {self.how} join has no fields of the table, such as {one.field!r}"
                )
        times = Counter(one.name for one in found)
        stream = self.left[0] if self.left[1] == DEFAULT_STREAM else self.left[1]
        long = {LEFT: stream, TABLE: TABLE}
        made = [one if times[one.name] == 1 else replace(one, name=f"{long[one.side]}_{one.name}") for one in found]
        for name, number in Counter(one.name for one in made).items():
            if number > 1:
                faults.append(f"LookupJoin: select: field {name!r} is selected {number} times; select it once")
        return list({one.name: one for one in made}.values())

    def _one(self, text: str, fields: Sequence[str], columns: Sequence[str], faults: list[str]) -> Selected | None:
        head, colon, tail = text.partition(":")
        side, name = (head.strip(), tail.strip()) if colon else (None, text)
        if side in (None, LEFT, *self.left) and name in fields:
            return Selected(name, LEFT, name)
        if side in (None, *_TABLE_NAMES) and name in columns:
            return Selected(name, TABLE, name)
        if side not in (None, LEFT, *self.left, *_TABLE_NAMES):
            faults.append(f"LookupJoin: select: {text!r}: expected left:field or table:column")
        else:
            known = columns if side in _TABLE_NAMES else fields if side is not None else [*fields, *columns]
            faults.append(_missing(f"LookupJoin: select: there is no {text!r}", name, known))
        return None


def _of_values(kind: Any) -> Any:
    """Return the type of the values of a column, as it is declared; None if it is not known."""
    kind = kind.value_type if isinstance(kind, pa.DictionaryType) else kind
    return None if isinstance(kind, pa.DataType) and python_type(kind) is type(None) else kind


def _type_faults(wanted: Sequence[Selected], schema: pa.Schema) -> Iterator[str]:
    for one in wanted:
        if one.side == TABLE:
            kind = schema.field(one.field).type
            if pa.types.is_timestamp(kind) and kind.tz is None:
                yield (
                    f"LookupJoin: select: column {one.field!r} has times without time zone; select the others, or "
                    "give the table times in UTC"
                )


def _missing(what: str, name: str, known: Sequence[str]) -> str:
    return f"{what}{near(name, list(known))}; there are {', '.join(dict.fromkeys(known))}"


def _stream(left: Any) -> tuple[str, str]:
    if isinstance(left, Side):
        return left.component, left.stream
    if isinstance(left, str) and left:
        return left, DEFAULT_STREAM
    if isinstance(left, list | tuple) and len(left) == 2 and all(isinstance(one, str) and one for one in left):
        return left[0], left[1]
    raise InputError(f"LookupJoin: left: expected a Side, a component, or a component and a stream, got {left!r}")


def _directory(uri: Any) -> str:
    text = str(uri) if isinstance(uri, str | Path) else ""
    if text.startswith("file:"):
        text = "/" + unquote(text.removeprefix("file:").lstrip("/"))
    if not text or "://" in text:
        raise InputError(f"LookupJoin: uri: expected the directory of a Delta table, or a file: URI of it, got {uri!r}")
    return str(Path(text).absolute())


def _pairs(on: Any) -> dict[str, str]:
    """Return field of the stream → column of the table."""
    given = [on] if isinstance(on, str) or not isinstance(on, Mapping | list | tuple | None) else on
    found = dict(given) if isinstance(given, Mapping) else dict(zip(given, given, strict=True)) if given else {}
    if not found or not all(isinstance(one, str) and one for pair in found.items() for one in pair):
        msg = f"LookupJoin: on: expected fields, or field → column of the table, such as {{'user': 'id'}}, got {on!r}"
        raise InputError(msg)
    return found
