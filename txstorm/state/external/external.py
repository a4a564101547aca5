"""A map or an outlet in the system it is in: what both have in common, P7 above all."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

from txstorm import faults
from txstorm.storage.tables.intent import Intent, IntentTable
from txstorm.storage.tables.staging import STAGED, checked_bytes
from txstorm.storage.tables.table import TableRef


class External(ABC):
    """One map or outlet: whose it is, where its rows are staged, and where it is.

    Attributes:
        last: the last txid written to it; of what has no mark, as far as this run knows.
    """

    def __init__(self, data_dir: Path, component: str, ref: TableRef) -> None:
        self.component = component
        self.ref = ref
        self.path = data_dir / ref.uri
        self.last = 0

    def make_directory(self) -> None:
        """Make the place where rows are staged; called in P0."""
        (self.path / STAGED).mkdir(parents=True, exist_ok=True)

    def publish(self, number: int, table: IntentTable, intent: Intent, epoch: int) -> None:
        """Write the staged rows of `intent`, once; may be called again after any failure.

        Passes the fault points ``p7.<number>.before``, ``.written`` and ``.after``.

        Raises:
            FencedError: a newer coordinator leads it.
            TableCorrupt: the staged rows are damaged, or it is not where the intent expects it.
            BlockedError: its system cannot be reached, or refuses the rows.
        """
        faults.point(f"p7.{number}.before")
        self._put(checked_bytes(self.path, table.staged), table, intent, epoch)
        faults.point(f"p7.{number}.written")
        self.last = intent.last
        faults.point(f"p7.{number}.after")

    @abstractmethod
    def _put(self, staged: bytes, table: IntentTable, intent: Intent, epoch: int) -> None:
        """Write the rows of the Parquet file `staged`, unless they are written; raises as `publish`."""
