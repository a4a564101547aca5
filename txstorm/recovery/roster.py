"""Roster check: compare the tables and sources recorded in the ledger with those that the code declares.

A recorded table or source that the code no longer declares would silently stop being updated, so the start is refused
unless the operator drops it by name.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from txstorm import faults
from txstorm.api.composite import AnySpout, CompositeSpout, is_opaque
from txstorm.api.names import near
from txstorm.api.state import KeyedState
from txstorm.books.books import Books
from txstorm.books.records import Dropped
from txstorm.errors import DataDirectoryError, InputError, StateError
from txstorm.recovery.take_over import mark_dropped
from txstorm.storage.tables.declared import LETTERS_REF, all_declared, declarations, dropped
from txstorm.storage.tables.directory import Directory, TableDirectory
from txstorm.storage.tables.identity import TableRef, TopologyIdentity
from txstorm.topology.graph import Topology

log = logging.getLogger(__name__)
SOURCE = "source "
"""Prefix of a source's name in messages, in which tables are named by their directory."""


class Roster(NamedTuple):
    """Tables and sources that the operator drops with this start.

    Attributes:
        tables: the names of the dropped tables in the ledger.
        sources: the names of the dropped sources of a composite spout.
    """

    tables: frozenset[str] = frozenset()
    sources: frozenset[str] = frozenset()

    def dropped(self, books: Books, declared: Iterable[str], committed: int) -> Dropped:
        """Return all tables and sources dropped so far, given the `declared` sources and the last `committed` txid."""
        before = books.dropped()
        sources = {name: txid for name, txid in before.sources.items() if name not in set(declared)}
        return Dropped(
            {**before.tables, **dict.fromkeys(self.tables, committed)},
            {**sources, **dict.fromkeys(self.sources - sources.keys(), committed)},
        )


def check_roster(topology: Topology, books: Books, drop: Sequence[str] = ()) -> Roster:
    """Compare the ledger with the declarations of `topology`; return the entries to drop. Writes nothing.

    Raises:
        StateError: a table or source is recorded but not declared, or declared although it was dropped earlier; or a
            decided group has rows for something outside that is not declared.
        InputError: `drop` names a table or source that is declared, or is not recorded.
        DataDirectoryError: transactions in flight need a source that the code does not declare.
    """
    gone, declared = books.dropped(), _declared(topology)
    outside = _outside(topology)
    for intent in books.live_intents():
        for table in intent.tables:
            if table.outside and table.uri not in outside:
                raise StateError(
                    f"{table.kind} {table.name!r}: txids {intent.first}-{intent.last} are decided and have rows for "
                    f"it, but the topology no longer declares it: start it once with the code that does, and the "
                    f"{table.kind}'s store"
                )
    tables = undeclared_tables(books, declared) - {LETTERS_REF.uri}
    sources = _recorded_sources(topology, books) - sources_of(topology.spout.object) - gone.sources.keys()
    left = {**{uri: uri for uri in sorted(tables)}, **{f"{SOURCE}{name}": name for name in sorted(sources)}}
    named = {label for name in drop for label in _named(topology, books, name, left)}
    if missing := [label for label in left if label not in named]:
        raise StateError(_left_out(topology, missing, left))
    _check_in_flight(topology, books, sources)
    return Roster(
        frozenset(label for label in named if not label.startswith(SOURCE)),
        frozenset(label.removeprefix(SOURCE) for label in named if label.startswith(SOURCE)),
    )


def check_started(place: Directory, topology: Topology, books: Books, owner: TopologyIdentity) -> None:
    """Check the declared tables, and that rows which depend on their declaration were written with the same one.

    Writes nothing.

    Raises:
        StateError: a declaration is invalid, or a component has other windows, or another number of tasks, than its
            tables were written with.
    """
    recorded = books.tables()
    for one in declarations({**topology.states, **topology.kept}, topology.sinks):
        bound = isinstance(one.table, KeyedState) and (one.table.fixed is not None or one.table.tasks is not None)
        if bound and one.refs[0].uri in recorded and place.has(one.refs[0]):
            one.check_start(place.table(owner, one.refs[0]))


def undeclared_tables(books: Books, declared: Mapping[str, str]) -> set[str]:
    """Return the recorded tables that are missing from `declared` (name in the ledger → name in messages).

    Raises:
        StateError: a declared table was dropped earlier.
    """
    gone = books.dropped().tables
    for uri, label in declared.items():
        if uri in gone:
            raise dropped(label, gone[uri])
    live = {one.uri for intent in books.live_intents() for one in intent.tables}
    return (books.tables().keys() | live) - declared.keys()


def record(
    where: Path | TableDirectory,
    books: Books,
    owner: TopologyIdentity,
    tables: Mapping[str, int],
    roster: Roster,
    sources: Iterable[str] = (),
) -> None:
    """Record `tables` (ledger name → last txid) and the dropped ones in the ledger, then mark the dropped tables.

    Called at the end of P0 (take over), once all decided groups are published, so that no commit happens in between.
    """
    committed = books.currtx() - 1
    books.write_tables(tables, roster.dropped(books, sources, committed))
    faults.point("p0.recorded")
    for name in sorted([*roster.tables, *roster.sources]):
        log.warning("%s is dropped after txid %s", name, committed)
    mark_dropped(where, dict.fromkeys(roster.tables, committed), owner, books.epoch)


def sources_of(spout: AnySpout) -> set[str]:
    """Return the names of a composite spout's sources; an empty set for any other spout."""
    return set(spout.sources) if isinstance(spout, CompositeSpout) else set()


def _declared(topology: Topology) -> dict[str, str]:
    """Return the ledger name → name in messages of every declared table, map and outlet."""
    states = {**topology.states, **topology.kept}
    found = {one.refs[0].uri: one.label for one in all_declared(states, topology.sinks)}
    for uri in _outside(topology):
        directory, _, name = uri.partition("/")
        found[uri] = f"{directory.removesuffix('s')} {name!r}"
    # A state declared with the other layout is refused later, with a specific message, when its table is opened.
    other = {"changes": "state", "state": "changes"}
    for uri, label in list(found.items()):
        directory, _, name = uri.partition("/")
        if directory in other:
            found.setdefault(f"{other[directory]}/{name}", label)
    return found


def _outside(topology: Topology) -> set[str]:
    """Return the uris of all that the topology commits outside of the tables."""
    declared = (one for some in topology.targets.values() for one in some if one.commits)
    return {TableRef(one.committed_as, one.name).uri for one in declared}


def _recorded_sources(topology: Topology, books: Books) -> set[str]:
    """Return the sources in the recorded spout documents; raise `DataDirectoryError` if the kind of spout differs."""
    found = {txid: _sources(meta.document) for txid, meta in books.metas().items()}
    composite = isinstance(topology.spout.object, CompositeSpout)
    for txid, sources in found.items():
        if bool(sources) is not composite:
            kinds = ("a composite spout", "a single source")
            was, now = kinds if sources else kinds[::-1]
            raise DataDirectoryError(
                f"spout {topology.spout.id!r}: the positions of txid {txid} are those of {was}, the code has {now}, "
                "which cannot continue from there; use the former kind (a CompositeSpout may have one source), or "
                "start in a new data directory"
            )
    return {name for sources in found.values() for name in sources}


def _sources(document: Any) -> Mapping[str, Any]:
    """Return source → its document if `document` is that of a composite spout; otherwise an empty mapping."""
    if (
        isinstance(document, Mapping)
        and document.keys() - {"facts"} == {"sources"}
        and isinstance(document["sources"], Mapping)
    ):
        return document["sources"]
    return {}


def _named(topology: Topology, books: Books, name: str, left: Mapping[str, str]) -> list[str]:
    """Find the entry of `left` that `name` refers to: a table by its name or directory, or a source by its name."""
    known = [label for label, one in left.items() if name in (label, one, one.partition("/")[2])]
    if len(known) == 1:
        return known
    if known:
        raise InputError(f"--drop {name}: there are {' and '.join(known)}; use one of these names, or each of them")
    gone = books.dropped()
    if any(name in (uri, uri.partition("/")[2]) for uri in gone.tables) or name in gone.sources:
        return []  # dropped by an earlier start with the same command
    if any(name in (uri, uri.partition("/")[2]) for uri in _declared(topology)) or name in sources_of(
        topology.spout.object
    ):
        msg = f"--drop {name}: topology {topology.id!r} declares it; take it out of the code, or do not drop it"
        raise InputError(msg)
    names = [one.partition("/")[2] or one for one in left.values()]
    those = ", ".join(names) or "nothing"
    raise InputError(f"--drop {name}: nothing of that name is recorded{near(name, names)}; there is {those} to drop")


def _left_out(topology: Topology, missing: Sequence[str], left: Mapping[str, str]) -> str:
    names = [left[label].partition("/")[2] or left[label] for label in missing]
    short = [name if names.count(name) == 1 else left[label] for name, label in zip(names, missing, strict=True)]
    moved = [one.id for one in topology.components if one.assembled is not None and one.id in names]
    provider = f" (the state of component {moved[0]!r} was kept by another state_provider)" if moved else ""
    words = ("is", "it", "it stays", "its") if len(missing) == 1 else ("are", "them", "they stay", "their")
    return (
        f"topology {topology.id!r}: {', '.join(missing)} {words[0]} recorded in the ledger, but not declared by the "
        f"code{provider}; what is committed without {words[1]} would be missing there for good. Put {words[1]} back; "
        f"or, if {words[2]} as now and {words[3]} name is not used again, drop {words[1]}: "
        f"{' '.join(f'--drop {name}' for name in short)} (in Python: run(topology, drop={short!r}))"
    )


def _check_in_flight(topology: Topology, books: Books, sources: Iterable[str]) -> None:
    """Raise if transactions in flight, which a transactional spout must replay, need one of the missing `sources`."""
    if is_opaque(topology.spout.object):
        return
    currtx = max([books.currtx(), *(intent.last + 1 for intent in books.live_intents())])
    for txid, meta in books.metas().items():
        emitting = {name for name, one in _sources(meta.document).items() if not one.get("skipped")}
        if txid >= currtx and (needed := sorted(emitting.intersection(sources))):
            last = max(books.metas())
            raise DataDirectoryError(
                f"topology {topology.id!r}: txid {txid} is planned with source {needed[0]!r} and not committed; run "
                f"the code that has it until txid {last} (--until-txid {last}), and drop it then"
            )
