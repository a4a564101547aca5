"""Which version of a state table is to be read for a state as of a txid."""

from __future__ import annotations

from txstorm.errors import StateError
from txstorm.state.logged import COMPACTED, CREATED, RESTORED, LoggedTable


def version_as_of(table: LoggedTable, wanted: int) -> tuple[int, int]:
    """The newest version of a state table that is not ahead of txid `wanted`, and the txid it is as of.

    Versions of earlier timelines count too: before one that a rewind took back there is a newer one that it made.

    Raises:
        StateError: there is none, or none that is kept.
    """
    if (last := table.last_txid()) <= wanted:
        return table.version, last
    for entry in table.log.history():
        info = entry.info
        if info.get("kind") not in (COMPACTED, CREATED, RESTORED):
            continue
        as_of = info["last"] if info["kind"] == CREATED else info["as_of"]
        if as_of <= wanted:
            return entry.version, as_of
    msg = (
        f"state {table.ref.name!r}: txid {wanted} is older than what is kept of it (or than the state itself); "
        "ask for a later one"
    )
    raise StateError(msg)
