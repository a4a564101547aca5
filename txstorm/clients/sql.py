"""Tables in any database that SQLAlchemy supports: maps, snapshots. The only module that imports `sqlalchemy`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from hashlib import blake2b
from threading import Lock
from typing import Any, NamedTuple

from txstorm.api.external import MapMark, MapRow
from txstorm.errors import InputError, MissingDependency, StateError
from txstorm.masks import masked_url

try:
    import sqlalchemy as sa
    from sqlalchemy import exc
except ModuleNotFoundError:
    raise MissingDependency("sqlalchemy", "sql") from None

MARKS, SNAPSHOTS = "txstorm_marks", "txstorm_snapshots"
PART = 15_000
"""Number of characters of a saved state in one row: not all databases have longer texts."""
CHUNK = 500
TRIES = 5
_ID_BYTES = 20


class _Database:
    """Some tables of a database, created on first use.

    `source`: a database URL, or a function that returns the `sqlalchemy.Engine`, called on first use. `advice`: what to
    do if a table was not made by txstorm.
    """

    def __init__(
        self, source: str | Callable[[], sa.Engine], name: str, tables: sa.MetaData, advice: str = "use another table"
    ) -> None:
        self._make = _maker(source) if isinstance(source, str) else source
        self._engine: sa.Engine | None = None
        self._lock = Lock()
        self._name, self._tables, self._advice = name, tables, advice

    def dispose(self) -> None:
        """Close the connections; the next call opens new ones."""
        if self._engine is not None:
            self._engine.dispose()

    @contextmanager
    def _transaction(self) -> Iterator[sa.Connection]:
        """Context manager for a transaction; raises `ConnectionError` if the database cannot be reached."""
        try:
            with self._opened().begin() as connection:
                yield connection
        except (exc.OperationalError, exc.InterfaceError, exc.TimeoutError) as error:
            raise ConnectionError(f"table {self._name!r}: {getattr(error, 'orig', None) or error}") from error
        except exc.DBAPIError as error:
            if not error.connection_invalidated:
                raise
            raise ConnectionError(f"table {self._name!r}: the connection was lost: {error.orig}") from error

    def _opened(self) -> sa.Engine:
        with self._lock:
            if self._engine is None:
                engine = self._make()
                self._create(engine)
                self._engine = engine
            return self._engine

    def _create(self, engine: sa.Engine) -> None:
        """Create missing tables, and check the others; another process may be creating them at the same time."""
        for tries_left in reversed(range(TRIES)):
            try:
                self._tables.create_all(engine)
                break
            except exc.DBAPIError as error:
                taken = isinstance(error, exc.IntegrityError) or "already exists" in str(error.orig)
                if not (taken and tries_left):
                    raise
        for table in self._tables.sorted_tables:
            found = {column["name"] for column in sa.inspect(engine).get_columns(table.name)}
            missing = [column.name for column in table.columns if column.name not in found]
            if missing:
                raise StateError(
                    f"table {table.name!r} exists, but has no columns {', '.join(missing)}: it was not made by "
                    f"txstorm; {self._advice}"
                )


class SqlAlchemyBackend(_Database):
    """`txstorm.api.external.MarkedMapBackend` in a database table; rows and mark are written in one transaction.

    The table and the table ``txstorm_marks`` are created on first use. A statement has at most `CHUNK` keys.

    Args:
        source: a database URL, or a function that returns the `sqlalchemy.Engine`, called on first use.
        table: the table for this map; no other map may use it.

    Raises:
        InputError: the URL is invalid, or names an in-memory SQLite database, which would be empty in other threads.
        MissingDependency: SQLAlchemy, or the driver that the URL names, is not installed.
    """

    def __init__(self, source: str | Callable[[], sa.Engine], table: str) -> None:
        super().__init__(source, table, sa.MetaData(), "give the map another table")
        self._rows = _rows_table(table, self._tables)
        self._marks = _marks_table(self._tables)

    @classmethod
    def from_env(cls, variable: str, table: str) -> SqlAlchemyBackend:
        """Return a backend for the database whose URL is in the environment variable `variable`, read on first use."""

        def make() -> sa.Engine:
            url = os.environ.get(variable)
            if not url:
                msg = f"map table {table!r}: expected a database URL in the environment variable {variable}; set it"
                raise InputError(msg)
            return _maker(url)()

        return cls(make, table)

    def multi_get(self, keys: Sequence[str]) -> list[MapRow | None]:
        """See `txstorm.api.external.MapBackend`."""
        found: dict[str, MapRow] = {}
        rows = self._rows.c
        columns = [rows.id, rows.value, rows.txid, rows.timeline, rows.prev]
        ids = [_id(key) for key in keys]
        with self._transaction() as connection:
            for chunk in _chunks(ids):
                for row in connection.execute(sa.select(*columns).where(rows.id.in_(chunk))):
                    found[row.id] = MapRow(_value(row.value), row.txid, row.timeline, _value(row.prev))
        return [found.get(row_id) for row_id in ids]

    def multi_put(self, rows: Mapping[str, MapRow | None]) -> None:
        """See `txstorm.api.external.MapBackend`."""
        with self._transaction() as connection:
            self._put(connection, rows)

    def mark(self) -> MapMark | None:
        """See `txstorm.api.external.MarkedMapBackend`."""
        marks = self._marks.c
        columns = [marks[name] for name in MapMark.__slots__]
        with self._transaction() as connection:
            found = connection.execute(sa.select(*columns).where(marks.map == self._name)).one_or_none()
        return None if found is None else MapMark(*found)

    def put_marked(self, rows: Mapping[str, MapRow | None], expected: MapMark | None, mark: MapMark) -> bool:
        """See `txstorm.api.external.MarkedMapBackend`; updating the mark first locks its row until the commit."""
        with self._transaction() as connection:
            if not self._move_mark(connection, expected, mark):
                connection.rollback()
                return False
            self._put(connection, rows)
        return True

    def _move_mark(self, connection: sa.Connection, expected: MapMark | None, mark: MapMark) -> bool:
        if expected is None:
            try:
                connection.execute(sa.insert(self._marks).values(map=self._name, **asdict(mark)))
            except exc.IntegrityError:  # another process has inserted it first
                return False
            return True
        same = [self._marks.c[name] == value for name, value in asdict(expected).items()]
        found = connection.execute(
            sa.update(self._marks).where(self._marks.c.map == self._name, *same).values(**asdict(mark))
        )
        return found.rowcount == 1

    def _put(self, connection: sa.Connection, rows: Mapping[str, MapRow | None]) -> None:
        """Overwrite rows by delete and insert, the only method that works in all databases."""
        columns = self._rows.c
        newest = max((row.txid for row in rows.values() if row), default=0)
        connection.execute(sa.delete(self._rows).where(columns.removed < newest))
        for chunk in _chunks([_id(key) for key in rows]):
            connection.execute(sa.delete(self._rows).where(columns.id.in_(chunk)))
        for part in _chunks([_columns(key, row) for key, row in rows.items() if row]):
            connection.execute(sa.insert(self._rows), part)


class SnapshotRow(NamedTuple):
    """A saved state, without its text.

    Attributes:
        number: orders the states of an instance by when they were saved.
        clock: its clock, as JSON.
        topology: id of the topology; empty: unknown.
        version: version of the format.
    """

    number: int
    clock: str
    topology: str
    version: int


class SnapshotTables(_Database):
    """Saved states as texts, in the tables `SNAPSHOTS` and ``…_parts``; each is written in one transaction.

    Args:
        source: as for `SqlAlchemyBackend`.
    """

    def __init__(self, source: str | Callable[[], sa.Engine]) -> None:
        super().__init__(source, SNAPSHOTS, sa.MetaData(), "use another database")
        whose = (("bolt", sa.String(255)), ("instance", sa.Integer), ("number", sa.BigInteger))
        self._rows = sa.Table(
            SNAPSHOTS,
            self._tables,
            *(sa.Column(name, kind, primary_key=True, autoincrement=False) for name, kind in whose),
            sa.Column("clock", sa.Text, nullable=False),
            sa.Column("topology", sa.String(255), nullable=False),
            sa.Column("version", sa.Integer, nullable=False),
        )
        self._parts = sa.Table(
            f"{SNAPSHOTS}_parts",
            self._tables,
            *(sa.Column(name, kind, primary_key=True, autoincrement=False) for name, kind in whose),
            sa.Column("part", sa.Integer, primary_key=True, autoincrement=False),
            sa.Column("text", sa.Text, nullable=False),
        )

    @contextmanager
    def _transaction(self) -> Iterator[sa.Connection]:
        """Context manager for a transaction; raises `ConnectionError` if it fails."""
        try:
            with super()._transaction() as connection:
                yield connection
        except exc.SQLAlchemyError as error:
            raise ConnectionError(f"table {self._name!r}: {getattr(error, 'orig', None) or error}") from error

    def owners(self) -> set[tuple[str, int]]:
        """Return (topology, version of the format) of everything that is saved."""
        with self._transaction() as connection:
            found = connection.execute(sa.select(self._rows.c.topology, self._rows.c.version).distinct())
            return {(topology, version) for topology, version in found}

    def rows(self, bolt: str, instance: int) -> list[SnapshotRow]:
        """Return what is saved of an instance, newest first."""
        rows = self._rows.c
        wanted = sa.select(rows.number, rows.clock, rows.topology, rows.version)
        with self._transaction() as connection:
            found = connection.execute(wanted.where(*_of(self._rows, bolt, instance)).order_by(rows.number.desc()))
            return [SnapshotRow(*row) for row in found]

    def text(self, bolt: str, instance: int, number: int) -> str:
        """Return the text of a saved state."""
        wanted = sa.select(self._parts.c.text).where(*_of(self._parts, bolt, instance, number))
        with self._transaction() as connection:
            return "".join(connection.execute(wanted.order_by(self._parts.c.part)).scalars())

    def put(self, bolt: str, instance: int, row: SnapshotRow, text: str, gone: Sequence[int]) -> None:
        """Save a state, and remove those with the numbers `gone`."""
        whose = {"bolt": bolt, "instance": instance, "number": row.number}
        parts = [text[start : start + PART] for start in range(0, len(text), PART)]
        with self._transaction() as connection:
            self._remove(connection, bolt, instance, gone)
            connection.execute(sa.insert(self._rows).values({**row._asdict(), **whose}))
            for some in _chunks([{**whose, "part": part, "text": one} for part, one in enumerate(parts)]):
                connection.execute(sa.insert(self._parts), some)

    def remove(self, bolt: str, instance: int, gone: Sequence[int]) -> None:
        """Remove the saved states with these numbers."""
        with self._transaction() as connection:
            self._remove(connection, bolt, instance, gone)

    def _remove(self, connection: sa.Connection, bolt: str, instance: int, gone: Sequence[int]) -> None:
        for number in gone:
            for table in (self._rows, self._parts):
                connection.execute(sa.delete(table).where(*_of(table, bolt, instance, number)))


def _of(table: sa.Table, bolt: str, instance: int, number: int | None = None) -> list[sa.ColumnElement[bool]]:
    wanted = [table.c.bolt == bolt, table.c.instance == instance]
    return wanted if number is None else [*wanted, table.c.number == number]


def _maker(url: str) -> Callable[[], sa.Engine]:
    try:
        parsed = sa.make_url(url)
    except exc.ArgumentError:
        msg = "expected a database URL such as 'postgresql+psycopg://user@host/database', got something else"
        raise InputError(msg) from None
    if parsed.get_backend_name() == "sqlite" and parsed.database in (None, "", ":memory:"):
        shown = masked_url(url)
        msg = f"{shown}: a SQLite database in memory is another one in every thread; name a file, or use MemoryBackend"
        raise InputError(msg)

    def make() -> sa.Engine:
        try:
            return sa.create_engine(parsed, pool_pre_ping=True)
        except ModuleNotFoundError as error:
            raise MissingDependency(str(error.name), "sql") from error

    return make


def _rows_table(name: str, metadata: sa.MetaData) -> sa.Table:
    """Define the map's table, with digests of the keys as primary key.

    Databases differ in collation and in the maximum length of indexed text.
    """
    return sa.Table(
        name,
        metadata,
        sa.Column("id", sa.String(2 * _ID_BYTES), primary_key=True),
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("value", sa.Text),
        sa.Column("prev", sa.Text),
        sa.Column("timeline", sa.BigInteger, nullable=False),
        sa.Column("txid", sa.BigInteger, nullable=False),
        sa.Column("removed", sa.BigInteger, index=True),
    )


def _marks_table(metadata: sa.MetaData) -> sa.Table:
    return sa.Table(
        MARKS,
        metadata,
        sa.Column("map", sa.String(128), primary_key=True),
        sa.Column("topology", sa.String(64), nullable=False),
        sa.Column("incarnation", sa.String(64), nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("timeline", sa.BigInteger, nullable=False),
        sa.Column("txid", sa.BigInteger, nullable=False),
        sa.Column("content", sa.String(64), nullable=False),
    )


def _id(key: str) -> str:
    return blake2b(key.encode(), digest_size=_ID_BYTES).hexdigest()


def _columns(key: str, row: MapRow) -> dict[str, Any]:
    return {
        "id": _id(key),
        "key": key,
        "value": _text(row.value),
        "prev": _text(row.prev),
        "timeline": row.timeline,
        "txid": row.txid,
        "removed": row.txid if row.value is None else None,
    }


def _text(value: Any) -> str | None:
    return None if value is None else json.dumps(value, ensure_ascii=False)


def _value(text: str | None) -> Any:
    return None if text is None else json.loads(text)


def _chunks(values: Sequence[Any]) -> Iterator[Sequence[Any]]:
    return (values[i : i + CHUNK] for i in range(0, len(values), CHUNK))
