"""Feed spout: a source for tests, into which `TopologyTestDriver.feed` puts the tuples of one transaction at a time."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from txstorm.api.attempt import TransactionAttempt
from txstorm.api.composite import CompositeSpout
from txstorm.api.context import SourceFacts, TaskContext
from txstorm.api.names import near
from txstorm.api.output import Collector, OutputFieldsDeclarer
from txstorm.api.spout import NOT_READY, Emitter, SpoutCoordinator, TransactionalSpout
from txstorm.errors import InputError, SpoutError

Row = Sequence[Any]


class FeedSpout(CompositeSpout):
    """Spout whose transactions a test feeds, with `TopologyTestDriver.feed`; every stream is a source of its own.

    Example::

        spout = FeedSpout({"orders": ("id", "ts"), "payments": ("id", "ts")})

    What was fed stays in the spout, so that a transactional feed can repeat it after a failure or restart. An opaque
    feed forgets it: the next `feed` is for the lowest transaction that was dropped.

    Args:
        streams: stream → its fields.
        opaque: whether an undecided transaction is fed again after a failure.
    """

    def __init__(self, streams: Mapping[str, Sequence[str]], *, opaque: bool = False) -> None:
        if not isinstance(streams, Mapping) or not streams:
            msg = f"FeedSpout: expected stream → fields, such as {{'numbers': ('id', 'ts')}}, got {streams!r}"
            raise InputError(msg)
        self.feeds = {name: _Feed(name, tuple(fields)) for name, fields in streams.items()}
        kind = _OpaqueFeedSource if opaque else _FeedSource
        super().__init__({name: kind(feed) for name, feed in self.feeds.items()})

    def put(self, rows: Mapping[str, Sequence[Row]], caught_up: Collection[str] = ()) -> None:
        """Hold `rows`, by stream, for the next transaction; `caught_up` names the sources that are read to their end.

        Raises:
            InputError: a stream is unknown, or a row does not have one value per field.
        """
        for name in (*rows, *caught_up):
            if name not in self.feeds:
                msg = f"feed: unknown stream {name!r}{near(name, list(self.feeds))}; there are {', '.join(self.feeds)}"
                raise InputError(msg)
        given = {name: feed.checked(rows.get(name, ())) for name, feed in self.feeds.items()}
        for name, feed in self.feeds.items():
            feed.waiting = (given[name], name in caught_up)

    def withdraw(self) -> None:
        """Drop rows that no transaction has taken."""
        for feed in self.feeds.values():
            feed.waiting = None

    def adopt(self, other: FeedSpout) -> None:
        """Take over what was fed to `other`, whose transactions a topology with this spout continues."""
        for name, feed in other.feeds.items():
            if name in self.feeds:
                self.feeds[name].fed = feed.fed


class _Feed:
    """Rows that were fed to one stream, by the number of the feed."""

    def __init__(self, name: str, fields: tuple[str, ...]) -> None:
        self.name = name
        self.fields = fields
        self.fed: dict[int, list[Row]] = {}
        self.waiting: tuple[list[Row], bool] | None = None

    def checked(self, rows: Sequence[Row]) -> list[Row]:
        for row in rows:
            if not isinstance(row, tuple | list) or len(row) != len(self.fields):
                fields = list(self.fields)
                msg = f"feed: stream {self.name!r} has the fields {fields}; expected a tuple of them, got {row!r}"
                raise InputError(msg)
        return [tuple(row) for row in rows]

    def __reduce__(self) -> tuple[Any, ...]:
        return _Feed, (self.name, self.fields)  # workers get the rows as the payload of their batch


class _FeedSource(TransactionalSpout):
    def __init__(self, feed: _Feed) -> None:
        self._feed = feed

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(self._feed.fields)

    def coordinator(self, context: TaskContext) -> SpoutCoordinator:
        return _FeedCoordinator(self._feed)

    def emitter(self, context: TaskContext) -> Emitter:
        return _FeedEmitter(context)


class _OpaqueFeedSource(_FeedSource):
    opaque: bool = True


class _FeedCoordinator(SpoutCoordinator):
    def __init__(self, feed: _Feed) -> None:
        self._feed = feed

    def initialize_transaction(self, txid: int, prev_metadata: Any) -> Any:
        feed = self._feed
        if feed.waiting is None:
            return NOT_READY
        (rows, caught_up), feed.waiting = feed.waiting, None
        number = max(feed.fed, default=0) + 1
        feed.fed[number] = rows
        return {"feed": number, "rows": len(rows), "caught_up": caught_up}

    def payload(self, metadata: Any) -> Any:
        rows = self._feed.fed.get(metadata["feed"])
        if rows is None:
            raise SpoutError(
                f"stream {self._feed.name!r}: the {metadata['rows']} tuples of feed {metadata['feed']} are not in this "
                "FeedSpout; continue with the same object, or with restart() of the same driver"
            )
        return rows

    def facts(self, metadata: Any) -> SourceFacts:
        return SourceFacts(caught_up=bool(metadata and metadata["caught_up"]))

    def latest(self) -> Any:
        return len(self._feed.fed) + (self._feed.waiting is not None)

    def reached(self, metadata: Any, mark: Any) -> bool:
        return int(metadata["feed"] if metadata else 0) >= int(mark)


class _FeedEmitter(Emitter):
    def __init__(self, context: TaskContext) -> None:
        self._context = context

    def emit_batch(self, attempt: TransactionAttempt, metadata: Any, collector: Collector) -> None:
        # Receivers get what one task has emitted after the other: all tuples, in the order in which they were fed.
        rows, task, tasks = self._context.payload, self._context.task, self._context.parallelism
        first, stop = (-(-len(rows) * one // tasks) for one in (task, task + 1))
        collector.origin(lambda row: {"feed": metadata["feed"], "row": first + row})
        for row in rows[first:stop]:
            collector.emit(*row)
