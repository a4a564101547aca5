"""Facts of a plan inside the spout document, under the key ``facts``: where the document goes, they go.

Defaults are not stored, so that the document of an ordinary transaction has no such key. The epoch is stored only if it
is not that of the committed attempt, whose id contains it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from txstorm.api.context import Kind, PlanFacts, SourceFacts

FACTS = "facts"
EPOCH_BITS = 32
"""Number of the low bits of an attempt id that count attempts; those above are the epoch."""

_UNKNOWN = SourceFacts()


def with_facts(document: Any, facts: PlanFacts) -> Any:
    """Return `document` with these facts; an `epoch` of 0 is not stored."""
    stored: dict[str, Any] = {}
    if facts.kind != "data":
        stored["kind"] = facts.kind
    sources = {name: _stored(one) for name, one in facts.sources.items() if one != _UNKNOWN}
    if sources:
        stored["sources"] = sources
    if facts.pinned:
        stored["pinned"] = dict(facts.pinned)
    if facts.epoch:
        stored["epoch"] = facts.epoch
    return {**document, FACTS: stored} if stored else document


def facts_of(document: Any, sources: Sequence[str], attempt_id: int) -> PlanFacts:
    """Return the facts in `document`.

    Args:
        document: the document of a txid.
        sources: names of all sources of the spout.
        attempt_id: id of the attempt, which contains the epoch if the document does not.
    """
    stored = _facts(document)
    known = stored.get("sources", {})
    return PlanFacts(
        kind=stored.get("kind", "data"),
        sources={name: _source(known[name]) if name in known else _UNKNOWN for name in sources},
        pinned=stored.get("pinned", {}),
        epoch=stored.get("epoch", attempt_id >> EPOCH_BITS),
    )


def kind_of(document: Any) -> Kind:
    """Return the kind of the transaction with `document`; None, before the first transaction, counts as data."""
    return _facts(document).get("kind", "data")  # type: ignore[no-any-return]


def pinned_of(document: Any) -> Mapping[str, Any]:
    """Return component → pinned value of the transaction with `document`; empty if that is None."""
    return _facts(document).get("pinned", {})  # type: ignore[no-any-return]


def in_epoch(document: Any, epoch: int) -> Any:
    """Return `document` with the epoch that planned it, unless it is there already."""
    stored = _facts(document)
    return document if "epoch" in stored or not epoch else {**document, FACTS: {**stored, "epoch": epoch}}


def _facts(document: Any) -> dict[str, Any]:
    return document.get(FACTS, {}) if isinstance(document, Mapping) else {}


def _stored(facts: SourceFacts) -> dict[str, Any]:
    stored: dict[str, Any] = {"partitions": list(facts.partitions)} if facts.partitions else {}
    if facts.caught_up:
        stored["caught_up"] = True
    if facts.ended:
        stored["ended"] = True
    return stored


def _source(stored: Mapping[str, Any]) -> SourceFacts:
    return SourceFacts(tuple(stored.get("partitions", ())), stored.get("caught_up", False), stored.get("ended", False))
