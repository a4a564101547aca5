"""Who makes the commits that publish rows: the port, and the default writer."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from txstorm.clients.delta.handle import Commit, DeltaHandle


class Writer(Protocol):
    """Publishes the staged rows of groups to the tables that were declared with it.

    Everything else that is written to a table (epochs, compactions, rewinds, what a new coordinator rolls forward) is
    written by the handle itself, whoever the writer is: a table may be written by one today and by another tomorrow.
    """

    def prepare(self, table: Path) -> bool:
        """Called in P0 before the epoch is raised; True when `table` must get a commit so that other runs notice.

        Raises:
            InputError: the table cannot be written to safely from here.
        """

    def commit(self, handle: DeltaHandle, commit: Commit, txid_app: str) -> int | None:
        """Make the next version if `handle` is at the newest one, else change nothing.

        Returns the version, or None where the table has to be asked what it holds now; `refresh` the handle unless it
        has moved there. `txid_app`: the app id among those of `commit` that keeps the txid.

        Raises:
            ConflictError: the table is at another version than the handle, or somebody else committed meanwhile.
            TableCorrupt: the commit failed for another reason; it may have been made nevertheless.
            BlockedError: the table cannot be written to now.
        """


class DirectWriter:
    """The default: a log entry that refers to the staged file, made by the driver."""

    def prepare(self, table: Path) -> bool:
        """Nothing to do."""
        return False

    def commit(self, handle: DeltaHandle, commit: Commit, txid_app: str) -> int | None:
        """As the port says."""
        handle.commit(commit)
        return handle.version


DIRECT = DirectWriter()
