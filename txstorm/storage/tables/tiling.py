"""The commit infos of a log tile the txids: where one entry was lost, the next does not begin where the last ended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from txstorm.clients.delta.log import FOREIGN
from txstorm.errors import TableCorrupt


def check_own(table: str, infos: Iterable[Mapping[str, Any]]) -> None:
    """Raise `TableCorrupt` where somebody else has changed rows of a state; files put together are no harm."""
    for info in infos:
        if FOREIGN in info:
            msg = (
                f"table {table}: somebody else has changed its rows (operation {info[FOREIGN]}): it is no longer what "
                "the topology has committed; restore the table's directory from a copy, and write to tables of your own"
            )
            raise TableCorrupt(msg)


def check_tiles(table: str, infos: Iterable[Mapping[str, Any]]) -> None:
    """Raise `TableCorrupt` where txids of a timeline are missing between two of `infos`, which come oldest first.

    A power failure may leave the newest entry empty, which says nothing and is made again; an empty one with others
    after it has lost what it held.
    """
    lasts: dict[int, int | None] = {}
    for info in infos:
        timeline = info.get("timeline", 0)
        last = lasts.get(timeline)
        expected = info["first"] - 1 if "first" in info else info.get("last")
        if last is not None and expected is not None and expected != last:
            msg = (
                f"table {table}: expected the entry after txid {last} in the log, found one after {expected}: an entry "
                "between them is lost or damaged; restore the table's directory from a copy"
            )
            raise TableCorrupt(msg)
        lasts[timeline] = info.get("last", info.get("as_of", last))
