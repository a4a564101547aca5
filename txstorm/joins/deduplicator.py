"""Deduplicator: drops tuples whose ids are known, for a while after each start, or always within a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any

from txstorm.api.assembly import AssembledBolt, Assembly, Site
from txstorm.errors import InputError
from txstorm.joins.deduplicator_committer import DeduplicatorPlan, IdCommitter, RecallingCommitter
from txstorm.user_code import InDriver
from txstorm.windows.rules.forms import Duration, duration

ONE_TASK_PER_ID = ("global", "custom", "direct")
"""Groupings that can give all tuples of an id to one task, besides that by fields of the id."""


class Deduplicator(AssembledBolt):
    """Passes tuples on unchanged, each id once: drops the results of input that was delivered again.

    Example::

        once = Deduplicator("id", quiet=Duration.minutes(10), recent=recent_in_topic("results", "broker:9092", "id"))
        builder.set_bolt("once", once).fields_grouping("results", ["id"])

    With `quiet` it is active from each start of a run on: it drops known ids, and passed ids become known. A tuple that
    comes when the last duplicate (at first: the start) is `quiet` ago switches it off: it and all later tuples pass,
    nothing is looked up or stored any more, and the ids known so far are forgotten. The next start switches it on. With
    `keep` it is always active, and an id is known for `keep` after a tuple with it has passed. Time is that of the
    stamps of transactions.

    It emits the fields of its input to the stream of the same name. If no input is a default stream, and all have the
    same fields, its default stream has all tuples, too. A tuple whose id is None, or has None in it, always passes.
    Several results of one record need ids of their own.

    Args:
        id: the field or fields that identify a tuple.
        quiet: how long there must have been no duplicate before it is switched off.
        keep: how long an id is known.
        recent: returns ids of recent results (for several fields: each a tuple), which are then known; called once per
            start, in the driver, and given `pin_timeout`. At most 100,000 ids. If it fails, a warning says so,
            and it is called again for the next transaction.

    Raises:
        InputError: an argument is wrong, or there are both `quiet` and `keep`, or neither.
    """

    def __init__(
        self,
        id: str | Sequence[str],
        *,
        quiet: Duration | timedelta | None = None,
        keep: Duration | timedelta | None = None,
        recent: Callable[[], Iterable[Any]] | None = None,
    ) -> None:
        self.id = tuple(id) if isinstance(id, list | tuple) else (id,)
        if not self.id or not all(isinstance(one, str) and one for one in self.id) or len(set(self.id)) < len(self.id):
            msg = f"Deduplicator: id: expected the name of a field, or of several different ones, got {id!r}"
            raise InputError(msg)
        if (quiet is None) is (keep is None):
            got = "neither" if quiet is None else "both"
            raise InputError(
                "Deduplicator: expected either quiet= (active after each start, until there are no duplicates for that "
                f"long) or keep= (always active, ids are known for that long), got {got}"
            )
        if recent is not None and not callable(recent):
            raise InputError(
                f"Deduplicator: recent: expected a function that returns ids, got {recent!r}; see also "
                "txstorm.recent_in_sink, recent_in_state and recent_in_topic"
            )
        self.quiet = None if quiet is None else duration(quiet, "Deduplicator: quiet").microseconds
        self.keep = None if keep is None else duration(keep, "Deduplicator: keep").microseconds
        self.recent = recent

    def assemble(self, site: Site) -> Assembly:
        """Return the committer that drops duplicates."""
        inputs = {(one.component, one.stream): one.fields for one in site.inputs if one.fields is not None}
        plan = DeduplicatorPlan(site.id, self.id, self.quiet, self.keep, inputs)
        made = IdCommitter(plan) if self.recent is None else RecallingCommitter(plan, InDriver(self.recent))
        return Assembly(made, tuple(_faults(self.id, site)))


def _faults(id: tuple[str, ...], site: Site) -> Iterable[str]:
    """Yield the faults of a declaration that only show in its topology."""
    streams: dict[str, tuple[str, tuple[str, ...]]] = {}
    for one in site.inputs:
        if one.fields is None:
            continue
        yield from one.missing("Deduplicator", id)
        first, fields = streams.setdefault(one.stream, (one.component, one.fields))
        if fields != one.fields:
            yield (
                f"Deduplicator: {one.where} and that of {first!r} have the same name, but other fields, and both would "
                f"be emitted to its stream {one.stream!r}; use a Deduplicator for each"
            )
        split = one.grouping == "fields" and set(one.grouped_by) <= set(id)
        if site.parallelism > 1 and not split and one.grouping not in ONE_TASK_PER_ID:
            by = f"fields {', '.join(one.grouped_by)}" if one.grouping == "fields" else one.grouping
            yield (
                f"Deduplicator: its input {one.component!r} is grouped by {by}, so two tasks may get tuples with the "
                f"same id; use {one.grouping_by(id)}"
            )
