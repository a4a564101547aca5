"""Compaction: ``state/<name>`` brought up to a published txid, beside the commits, a range of key groups at a time.

The state as of txid T is its files with the later change rows up to T over them: both are files that never change, so
that nothing of the run has to stand still while the new files are written. Only the log entry that puts them in the
place of the old ones is made in the committer's turn. A crash leaves the table as it was or as it is to be; files that
nothing refers to are swept later.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from txstorm import faults
from txstorm.api.keys import KEY_GROUPS
from txstorm.clients.delta import DataFile
from txstorm.clients.delta_files import Bound
from txstorm.state.exchange import Exchange
from txstorm.state.expiry import alive, ttl_of
from txstorm.state.schema import KEY_GROUP, OP, REMOVED, STAMP, TXID
from txstorm.state.staging import STAGED, column_stats, compact_name, encoded, unique, write_new
from txstorm.state.table import DeltaTableState

Counts = npt.NDArray[np.int64]
"""Rows of every key group."""

FILE_ROWS = 500_000
FILE_BYTES = 32 << 20
WINDOW_ROWS = 1_000_000
"""Change rows in memory at once."""
LEAST_ROWS = 500_000
"""Change rows below which a table is brought up to date in quiet times only."""


@dataclass(frozen=True)
class Span:
    """Some neighbouring key groups and the files that hold their rows.

    Attributes:
        first, last: the key groups, both included.
        paths: files of the table, with rows of these key groups only.
        later: change rows of these key groups.
    """

    first: int
    last: int
    paths: tuple[str, ...]
    later: int


class Compaction:
    """One state table on its way from the txid it is as of to txid `as_of`.

    `steps` writes its new files, on any thread, as these handles are its own; `finish` is called afterwards, in the
    committer's turn, with the handle of that.

    Args:
        kept, changes: the tables ``state/…`` and ``changes/…``.
        keys: the key columns.
        epoch: of the coordinator.
        now: milliseconds since 1970.

    Attributes:
        uri: the state table.
        written: paths of files that this has written, or is about to write, relative to the table.
    """

    def __init__(
        self, kept: DeltaTableState, changes: DeltaTableState, keys: Sequence[str], as_of: int, epoch: int, now: int
    ) -> None:
        self.uri = kept.ref.uri
        self.written: set[str] = set()
        self._kept, self._changes, self._keys = kept, changes, list(keys)
        self._ttl = ttl_of(kept.handle.properties)
        self._base, self._as_of = kept.last_txid(), as_of
        self._epoch, self._now = epoch, now
        self._adds: list[DataFile] = []
        self._removes: list[str] = []

    def steps(self) -> Iterator[None]:
        """Write the new files, one range of key groups after each step; raises `TableCorrupt` and `OSError`.

        Passes the fault points ``compact.before`` and ``compact.staged``.
        """
        faults.point("compact.before")
        for window in _windows(self._spans()):
            later = self._later(window[0].first, window[-1].last)
            for span in window:
                yield
                self._rewrite(span, later)
        faults.point("compact.staged")

    def give_up(self) -> None:
        """Remove what was written: there is no use for it."""
        for path in self.written:
            (self._kept.path / path).unlink(missing_ok=True)

    def finish(self, kept: DeltaTableState) -> bool:
        """Make the new files those of the table, on the handle `kept`; False when somebody else has changed it.

        Called in the committer's turn. Passes the fault point ``compact.after``.

        Raises:
            FencedError: a newer coordinator leads this table.
        """
        done = kept.exchange(Exchange(self._adds, self._removes, self._now, self._base, self._as_of), self._epoch)
        faults.point("compact.after")
        return done

    def _spans(self) -> list[Span]:
        """The ranges that have changed, in their order, each as large as a file, about."""
        counts = self._counts(self._changes, (TXID.name, self._base), (TXID.name, self._as_of))
        files = _files(self._kept)
        weights = counts if files else counts + self._counts(self._kept, None, None)
        spans = (part for span in _ranges(files, self._kept, counts) for part in _cut(span, counts, weights))
        return [span for span in spans if span.later]

    def _counts(self, table: DeltaTableState, low: Bound | None, high: Bound | None) -> Counts:
        counts = np.zeros(KEY_GROUPS, np.int64)
        for part in table.handle.batches(low, high, [KEY_GROUP.name]):
            counts += np.bincount(part[KEY_GROUP.name].to_numpy(), minlength=KEY_GROUPS)
        return counts

    def _later(self, first: int, last: int) -> pa.Table:
        groups = (KEY_GROUP.name, first, last)
        parts = self._changes.handle.batches((TXID.name, self._base), (TXID.name, self._as_of), within=groups)
        return pa.concat_tables([self._changes.handle.schema.empty_table(), *parts])

    def _rewrite(self, span: Span, later: pa.Table) -> None:
        base = self._kept.handle.read(paths=span.paths, within=(KEY_GROUP.name, span.first, span.last))
        rows = folded(base, _between(later, span), self._keys, self._ttl)
        rows = rows.take(pa.array(np.argsort(rows[KEY_GROUP.name].to_numpy(), kind="stable")))
        self._adds += [self._write(part) for part in _parts(rows)]
        self._removes = list({*self._removes, *span.paths})

    def _write(self, rows: pa.Table) -> DataFile:
        path = f"{STAGED}/{compact_name(self._epoch, unique())}"
        self.written.add(path)
        data = encoded(rows)
        write_new(self._kept.path / path, data)
        return DataFile(path, len(data), self._now, column_stats(rows, KEY_GROUP.name))


@dataclass
class Growth:
    """How much a state has changed since its table was brought up to date.

    Attributes:
        rows: rows of the table.
        later: change rows since.
    """

    rows: int
    later: int
    _taken: int = 0

    @property
    def is_due(self) -> bool:
        """Whether it has changed by as much as it holds, so that what compaction writes stays in proportion."""
        return self.later >= max(LEAST_ROWS, self.rows)

    def begin(self) -> None:
        """What has changed up to now is being taken into the table."""
        self._taken = self.later

    def end(self, rows: int) -> None:
        """It is in the table, which now has `rows`."""
        self.rows, self.later, self._taken = rows, self.later - self._taken, 0


def folded(base: pa.Table, later: pa.Table, keys: list[str], ttl: timedelta | None = None) -> pa.Table:
    """The rows of `base` (a state) with the `later` changes over them, without removed ones; in no order.

    Rows whose time to live is over when the newest change was made are gone: they are for every later transaction.
    """
    later = later.take(pc.sort_indices(later[TXID.name]))
    ops = pa.concat_arrays([pa.repeat(False, base.num_rows), *pc.equal(later[OP.name], REMOVED).chunks])
    rows = pa.concat_tables([base, later.select(base.schema.names).cast(base.schema)])
    numbers = pa.array(np.arange(rows.num_rows))
    if keys and rows.num_rows:
        groups = rows.select(keys).append_column("_row", numbers).group_by(keys).aggregate([("_row", "max")])
        numbers = groups["_row_max"].combine_chunks()
    else:
        numbers = numbers[-1:]
    rows = rows.take(numbers.filter(pc.invert(ops.take(numbers))))
    return alive(rows, ttl, pc.max(later[STAMP.name]).as_py()) if ttl is not None else rows


def _ranges(files: Sequence[tuple[int, str, int]], kept: DeltaTableState, counts: Counts) -> Iterator[Span]:
    """All key groups, cut where a file begins; small neighbours together. Without `files` one range for all."""
    first, size = 0, 0
    paths = [] if files else [file.path for file in kept.handle.files()]
    for begins, path, rows in files:
        if paths and size + rows > FILE_ROWS // 2:
            yield Span(first, begins - 1, tuple(paths), int(counts[first:begins].sum()))
            first, paths, size = begins, [], 0
        paths.append(path)
        size += rows
    yield Span(first, KEY_GROUPS - 1, tuple(paths), int(counts[first:].sum()))


def _cut(span: Span, counts: Counts, weights: Counts) -> Iterator[Span]:
    """`span` in parts that can be held in memory, where one of its files would not be enough for its rows.

    All of them have its files: if one has changed, all are written again.
    """
    total = int(weights[span.first : span.last + 1].sum())
    parts = -(-total // FILE_ROWS)
    if parts <= 1 or not span.later:
        yield span
        return
    reached = np.cumsum(weights[span.first : span.last + 1])
    ends = {span.first + int(np.searchsorted(reached, total * i // parts)) for i in range(1, parts)}
    first = span.first
    for last in sorted({*ends, span.last}):
        yield Span(first, last, span.paths, max(1, int(counts[first : last + 1].sum())))
        first = last + 1


def _files(kept: DeltaTableState) -> list[tuple[int, str, int]]:
    """First key group, path and rows of every file; none where they overlap or do not say what they hold."""
    actions = kept.handle.actions()
    least, most = f"min.{KEY_GROUP.name}", f"max.{KEY_GROUP.name}"
    if not {least, most, "num_records"} <= set(actions.column_names) or actions[least].null_count:
        return []
    paths = [file.path for file in kept.handle.files()]
    rows = actions["num_records"].fill_null(0).to_pylist()
    files = sorted(zip(actions[least].to_pylist(), actions[most].to_pylist(), paths, rows, strict=True))
    if any(later[0] <= one[1] for one, later in pairwise(files)):
        return []
    return [(begins, path, size) for begins, _, path, size in files]


def _windows(spans: Sequence[Span]) -> Iterator[list[Span]]:
    """`spans` in groups whose change rows are held in memory together."""
    window: list[Span] = []
    for span in spans:
        if window and sum(one.later for one in window) + span.later > WINDOW_ROWS:
            yield window
            window = []
        window.append(span)
    if window:
        yield window


def _between(rows: pa.Table, span: Span) -> pa.Table:
    groups = rows[KEY_GROUP.name]
    return rows.filter(pc.and_(pc.greater_equal(groups, span.first), pc.less_equal(groups, span.last)))


def _parts(rows: pa.Table) -> Iterator[pa.Table]:
    """`rows`, which are by key group, as files of about the wanted size; a key group is in one of them."""
    if not rows.num_rows:
        return
    most = max(1, min(FILE_ROWS, FILE_BYTES * rows.num_rows // max(1, rows.nbytes)))
    groups = rows[KEY_GROUP.name].to_numpy()
    files = -(-rows.num_rows // most)
    wanted = [rows.num_rows * i // files for i in range(1, files)]
    cuts = sorted({0, rows.num_rows, *(int(np.searchsorted(groups, groups[cut])) for cut in wanted)})
    for start, end in pairwise(cuts):
        yield rows.slice(start, end - start)
