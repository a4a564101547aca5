"""Batches of a file spout: the coordinator, which cuts files into the ranges that transactions read."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

from txstorm.api.context import SourceFacts, TaskContext
from txstorm.api.output import Collector
from txstorm.api.spout import NOT_READY, SpoutCoordinator
from txstorm.errors import SpoutError
from txstorm.spouts.files.arrivals import Arrivals
from txstorm.spouts.files.listing import FileStatus, Listing, expand, status_of, unreadable
from txstorm.spouts.files.ranges import BY_NAME, Block, Piece, Segment, checked, segments
from txstorm.spouts.user_calls import Notices

ARRIVAL, NAME = "arrival", "name"


class Format(Protocol):
    """File format: finds record boundaries and emits ranges of records."""

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the fields emitted."""

    def probe(self, path: str) -> None:
        """Raise `SpoutError` unless `path` can be read and looks like this format."""

    def block(self, path: str, offset: int) -> Block:
        """Read one block of records from `offset` on (0: the first record); empty at the end of the file."""

    def resume(self, path: str, offset: int) -> int:
        """Return the start of the record that follows one without a line end; `offset` while the file has not grown."""

    def extent(self, path: str, size: int) -> int:
        """Return the offset at the end of the file, which has `size` bytes."""

    def trail(self, path: str, chain: str, since: int, upto: int) -> tuple[str, str]:
        """See `txstorm.spouts.files.arrivals.Digesting`."""

    def is_complete(self, path: str) -> bool:
        """Return whether the file can be read yet, as far as its first and last bytes tell."""

    def reread(self, segment: Segment) -> Any:
        """Read `segment` again; raise `SpoutError` if it has changed since it was planned."""

    def emit(self, segment: Segment, collector: Collector) -> None:
        """Reread `segment`, and emit its records."""


@dataclass(frozen=True)
class FileSource:
    """The files of a spout, and how batches are cut from them.

    Attributes:
        paths: the paths and globs.
        max_rows, max_bytes: limits of a batch.
        bounded: whether nothing is ever added.
        order: ``arrival`` or ``name``, as declared; None: by name where a directory began so, else as `keeps` says.
        keeps: whether the files that were read are kept, which reading them as they arrive needs.
        age: see `Arrivals`.
    """

    paths: tuple[str, ...]
    max_rows: int
    max_bytes: int
    bounded: bool
    order: str | None
    keeps: bool
    age: timedelta | None


class FileCoordinator(SpoutCoordinator):
    """Coordinator of a file spout, for either order of files."""

    def __init__(self, source: FileSource, chosen: Format, context: TaskContext) -> None:
        self._source = source
        self._format = chosen
        self._component = context.component
        self._parallelism = max(1, context.parallelism)
        self._notices = Notices(context.component, logging.getLogger(__name__))
        self._listing = Listing(source.paths)
        self._arrivals = Arrivals(source.paths, chosen, source.age, self._notices) if source.keeps else None
        self._order: Any = self._arrivals or self._listing
        self._block: Block | None = None
        self._status: FileStatus = (0, 0)
        self._planned: tuple[Any, Any] | None = None
        self._switch: Any = None

    def load_kept(self, rows: Any, planned: Mapping[int, Any]) -> None:
        """See `SpoutCoordinator`."""
        last = max(planned, default=0)
        self._choose(planned.get(last))
        if self._order is self._arrivals and self._arrivals is not None:
            self._arrivals.load(rows, planned)
            if self._switches(planned.get(last)):  # the next transaction; what is there now is known before it
                self._switch = self._arrivals.switched(planned[last])
                self._arrivals.note(last + 1, self._switch)
        elif planned:
            self._check_last_file(planned[min(planned)])

    def _check_last_file(self, metadata: Any) -> None:
        """Raise `SpoutError` if what was read last is not there any more: another file has taken its place.

        Its rest would otherwise be read as that of the file before, of which only ranges are known. A file that has
        been moved away has no rest; one that is too short is refused where it is read on.
        """
        last = checked(metadata)["segments"][-1:]
        for segment in map(Segment.from_json, last):
            with suppress(FileNotFoundError):
                if self._format.extent(segment.file, os.path.getsize(segment.file)) >= segment.stop:
                    self._format.reread(segment)

    def initialize_transaction(self, txid: int, prev_metadata: Any) -> Any:
        """See `SpoutCoordinator`."""
        with naming(self._component, txid):
            self._choose(prev_metadata)
            arrivals = self._arrivals if self._order is self._arrivals else None
            if arrivals is not None:
                arrivals.back_to(txid, prev_metadata)
            metadata = self._plan(prev_metadata)
            if arrivals is not None and metadata is not None:
                arrivals.note(txid, metadata)
        return NOT_READY if metadata is None else metadata

    def facts(self, metadata: Any) -> SourceFacts:
        """See `SpoutCoordinator`."""
        caught_up = self.caught_up(metadata)
        return SourceFacts(caught_up=caught_up, ended=caught_up and self._source.bounded)

    def caught_up(self, metadata: Any) -> bool:
        """See `SpoutCoordinator`."""
        try:
            return self._plan(metadata) is None
        except SpoutError:  # of the next transaction, which reports it
            return False

    def latest(self) -> Any:
        """See `SpoutCoordinator`."""
        if self._order is self._arrivals and self._arrivals is not None:
            self._block = self._planned = None  # what has come since they were read is there now
            return self._arrivals.latest()
        filled = [(name, size) for name, size in expand(self._source.paths).items() if size]
        return (filled[-1][0], self._format.extent(*filled[-1])) if filled else ("", 0)

    def reached(self, metadata: Any, mark: Any) -> bool:
        """See `SpoutCoordinator`."""
        if self._switches(metadata):
            return False
        if self._order is self._arrivals and self._arrivals is not None:
            position = self._arrivals.after(metadata)
            if self._arrivals.reached(position, mark):
                return True
            return position == self._arrivals.planned and self._plan(metadata) is None
        named = self._listing.after(metadata)
        self._listing.opens(named)
        # The remaining bytes may hold no record: a header, blank lines, or the end of a line already read.
        return (named.file or "", named.offset) >= tuple(mark) or self._plan(metadata) is None

    def committed(self, metadata: Any) -> None:
        """See `SpoutCoordinator`."""
        if self._arrivals is not None and metadata is not None:
            self._arrivals.committed(metadata)

    def notices(self) -> list[str]:
        """See `SpoutCoordinator`."""
        return self._notices.take()

    def remarks(self) -> list[str]:
        """See `SpoutCoordinator`."""
        return [] if self._arrivals is None else self._arrivals.remarks()

    def _choose(self, metadata: Any) -> None:
        """Choose the order in which the files after `metadata` are read: that in which they were, unless it switches.

        Metadata by arrival without the rows of the files is refused by `Listing.after`.
        """
        named = metadata is not None and checked(metadata)["v"] == BY_NAME and not self._switches(metadata)
        self._order = self._listing if named or self._arrivals is None else self._arrivals

    def _switches(self, metadata: Any) -> bool:
        """Return whether the files after `metadata`, until then by name, are read as they arrive."""
        return metadata is not None and self._source.order == ARRIVAL and metadata["v"] == BY_NAME

    def _plan(self, metadata: Any) -> Any:
        """Return the metadata of the batch after `metadata`; None if there is no record."""
        if self._arrivals is not None and self._switches(metadata):
            return self._switch or self._arrivals.switched(metadata)
        order, position = self._order, self._order.after(metadata)
        if self._planned is not None and self._planned[0] == position:
            return self._planned[1]
        for _ in range(2):
            if not order.opens(position):
                return None
            pieces, after = self._collect(position)
            if pieces:
                self._planned = position, order.metadata(segments(pieces, self._parallelism), after)
                return self._planned[1]
            if not order.dry(position):
                return None
        return None

    def _collect(self, position: Any) -> tuple[list[Piece], Any]:
        pieces: list[Piece] = []
        rows, room = self._source.max_rows, float(self._source.max_bytes)
        while rows:
            position, block, size = self._at(position)
            if block is None:
                following = self._order.following(position, size, self._status)
                if following is None:
                    break
                position = following
                continue
            piece = block.take(position.offset, rows, room, at_least=0 if pieces else 1)
            if not piece.rows:
                break
            pieces.append(piece)
            rows, room = rows - piece.rows, room - piece.size
            position = self._order.moved(position, piece, self._status)
        return pieces, position

    def _at(self, position: Any) -> tuple[Any, Block | None, int]:
        """Return `position`, moved past a line end added since, the block there (None: no records), and its end."""
        if position.file is None or position.done:
            return position, None, 0
        block = self._block
        if position.open:
            self._status = _status(position.file)
            offset = self._format.resume(position.file, position.offset)
            if offset == position.offset:
                return position, None, offset
            position = position.resumed(offset)
        if block is None or not block.holds(position.file, position.offset):
            self._status = _status(position.file)  # before its content: what is appended meanwhile is then noticed
            self._block = block = self._format.block(position.file, position.offset)
        return position, block if len(block.ends) else None, block.size


@contextmanager
def naming(component: str, txid: int) -> Iterator[None]:
    """Name the spout and the txid in errors about files."""
    try:
        yield
    except SpoutError as error:
        raise SpoutError(f"spout {component!r}, txid {txid}: {error}") from None


def _status(name: str) -> FileStatus:
    try:
        return status_of(name)
    except FileNotFoundError as error:
        raise unreadable(name, error) from None
