"""Which version of a state table is to be read for a state as of a txid."""

from __future__ import annotations

from txstorm.errors import StateError
from txstorm.state.logged import COMMITTED, COMPACTED, CREATED, RESTORED, LoggedTable
from txstorm.state.merged import check_group_end


def version_as_of(table: LoggedTable, wanted: int) -> tuple[int, int]:
    """The newest version of a state table that is not ahead of txid `wanted`, and the txid it is as of.

    Versions of earlier timelines count too: before one that a rewind took back there is a newer one that it made.

    Raises:
        StateError: there is none, or none that is kept; or `wanted` is inside a group of the layout ``merge``.
    """
    if (last := table.last_txid()) <= wanted:
        return table.version, last
    oldest = None
    for entry in table.log.history():
        info = entry.info
        if info.get("kind") not in (COMPACTED, COMMITTED, CREATED, RESTORED):
            continue
        if info["kind"] == COMMITTED:
            check_group_end(table.ref.name, info, wanted)
        as_of = info["as_of"] if info["kind"] in (COMPACTED, RESTORED) else info["last"]
        if as_of <= wanted:
            return entry.version, as_of
        oldest = as_of
    raise too_old(table.ref.name, wanted, oldest)


def too_old(name: str, wanted: int, oldest: int | None) -> StateError:
    """What to raise for a txid before `oldest`, the first that a state can be read as of."""
    return StateError(
        f"state {name!r}: txid {wanted} is older than what is kept of it (or than the state itself); ask for txid "
        f"{oldest} or later"
    )
