"""Compaction: ``state/<name>`` brought up to a published txid, beside the commits, a range of key groups at a time.

The state as of txid T is its files with the later change rows up to T over them: both are files that never change, so
that nothing of the run has to stand still while the new files are written. Only the log entry that puts them in the
place of the old ones is made in the committer's turn. A crash leaves the table as it was or as it is to be; files that
nothing refers to are swept later.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from txstorm import faults
from txstorm.state.exchange import Exchange
from txstorm.state.rewriting import Rewriting, Span, group_counts
from txstorm.state.schema import KEY_GROUP, TXID
from txstorm.state.table import DeltaTableState

WINDOW_ROWS = 1_000_000
"""Change rows in memory at once."""
LEAST_ROWS = 500_000
"""Change rows below which a table is brought up to date in quiet times only."""


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
    """

    def __init__(
        self, kept: DeltaTableState, changes: DeltaTableState, keys: Sequence[str], as_of: int, epoch: int, now: int
    ) -> None:
        self.uri = kept.ref.uri
        self._kept, self._changes = kept, changes
        self._base, self._as_of = kept.last_txid(), as_of
        self._epoch, self._now = epoch, now
        self._files = Rewriting(kept.handle, keys, epoch, now)

    @property
    def written(self) -> set[str]:
        """Paths of files that this has written, or is about to write, relative to the table."""
        return self._files.written

    def steps(self) -> Iterator[None]:
        """Write the new files, one range of key groups after each step; raises `TableCorrupt` and `OSError`.

        Passes the fault points ``compact.before`` and ``compact.staged``.
        """
        faults.point("compact.before")
        counts = group_counts(self._changes.handle, (TXID.name, self._base), (TXID.name, self._as_of))
        for window in _windows(self._files.spans(counts)):
            later = self._later(window[0].first, window[-1].last)
            for span in window:
                yield
                self._files.rewrite(span, later)
        faults.point("compact.staged")

    def give_up(self) -> None:
        """Remove what was written: there is no use for it."""
        self._files.give_up()

    def finish(self, kept: DeltaTableState) -> bool:
        """Make the new files those of the table, on the handle `kept`; False when somebody else has changed it.

        Called in the committer's turn. Passes the fault point ``compact.after``.

        Raises:
            FencedError: a newer coordinator leads this table.
        """
        files = Exchange(self._files.adds, list(self._files.removes), self._now, self._base, self._as_of)
        done = kept.exchange(files, self._epoch)
        faults.point("compact.after")
        return done

    def _later(self, first: int, last: int) -> pa.Table:
        groups = (KEY_GROUP.name, first, last)
        parts = self._changes.handle.batches((TXID.name, self._base), (TXID.name, self._as_of), within=groups)
        return pa.concat_tables([self._changes.handle.schema.empty_table(), *parts])


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
