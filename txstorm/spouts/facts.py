"""Facts of a plan inside the spout document, under the key ``facts``: where the document goes, they go.

Defaults are not stored, so that the document of an ordinary transaction has no such key. The epoch is not stored here:
it is part of the metadata until the commit, and of the id of the committed attempt afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from txstorm.api.context import MAX_ENDS, Kind, PlanFacts, SourceFacts
from txstorm.clocks import Clock

FACTS = "facts"
EPOCH_BITS = 32
"""Number of the low bits of an attempt id that count attempts; those above are the epoch."""

_UNKNOWN = SourceFacts()


def with_facts(document: Any, facts: PlanFacts) -> Any:
    """Return `document` with these facts, but for the epoch."""
    stored: dict[str, Any] = {}
    if facts.kind != "data":
        stored["kind"] = facts.kind
    sources = {name: _stored(one) for name, one in facts.sources.items() if one != _UNKNOWN}
    if sources:
        stored["sources"] = sources
    if facts.pinned:
        stored["pinned"] = dict(facts.pinned)
    if facts.max_ends != MAX_ENDS:
        stored["max_ends"] = facts.max_ends or 0
    if facts.resumes:
        stored["resumes"] = list(facts.resumes)
    if facts.clock is not None:
        stored["clock"] = dict(facts.clock)
    return {**document, FACTS: stored} if stored else document


def facts_of(document: Any, sources: Sequence[str], attempt_id: int, epoch: int = 0) -> PlanFacts:
    """Return the facts in `document`.

    Args:
        document: the document of a txid.
        sources: names of all sources of the spout.
        attempt_id: id of the attempt.
        epoch: the epoch that planned the txid; 0: unknown, then it is taken to be that of the attempt.
    """
    stored = _facts(document)
    known = stored.get("sources", {})
    return PlanFacts(
        kind=stored.get("kind", "data"),
        sources={name: _source(known[name]) if name in known else _UNKNOWN for name in sources},
        pinned=stored.get("pinned", {}),
        epoch=epoch or attempt_id >> EPOCH_BITS,
        max_ends=stored.get("max_ends", MAX_ENDS) or None,
        resumes=tuple(stored.get("resumes", ())),
        clock=Clock(stored["clock"]) if "clock" in stored else None,
    )


def kind_of(document: Any) -> Kind:
    """Return the kind of the transaction with `document`; None, before the first transaction, counts as data."""
    return _facts(document).get("kind", "data")  # type: ignore[no-any-return]


def waiting_of(document: Any) -> tuple[str, ...]:
    """Return the components to which the end of input has come in the transaction, but that have more ends to fire."""
    return tuple(_facts(document).get("waiting", ()))


def with_waiting(document: Any, components: Sequence[str]) -> Any:
    """Return the document of an end-of-input transaction after which these components have more ends to fire."""
    return {**document, FACTS: {**_facts(document), "waiting": sorted(components)}}


def without_waiting(document: Any) -> Any:
    """Return a document as it was planned: without the components that have more window ends to fire."""
    if not waiting_of(document):
        return document
    facts = {name: one for name, one in _facts(document).items() if name != "waiting"}
    return {**{name: one for name, one in document.items() if name != FACTS}, **({FACTS: facts} if facts else {})}


def pinned_of(document: Any) -> Mapping[str, Any]:
    """Return component → pinned value of the transaction with `document`; empty if that is None."""
    return _facts(document).get("pinned", {})  # type: ignore[no-any-return]


def _facts(document: Any) -> dict[str, Any]:
    return document.get(FACTS, {}) if document is not None and isinstance(document, Mapping) else {}


def _stored(facts: SourceFacts) -> dict[str, Any]:
    stored: dict[str, Any] = {"partitions": list(facts.partitions)} if facts.partitions else {}
    if facts.caught_up:
        stored["caught_up"] = True
    if facts.ended:
        stored["ended"] = True
    return stored


def _source(stored: Mapping[str, Any]) -> SourceFacts:
    return SourceFacts(tuple(stored.get("partitions", ())), stored.get("caught_up", False), stored.get("ended", False))
