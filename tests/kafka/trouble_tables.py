"""Verification of the tables after fault injection: every record of a topic exactly once, unless it was deleted.

The topics are read with plain read-committed consumers, the tables with `verifier` alone. The ranges and losses in the
history are compared with the deletions that the fault injection has recorded.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from servers.kafka_reading import SECONDS, committed_values
from verifier import Place, Read, Row, Rows, Verifier


@dataclass(frozen=True)
class Ended:
    """Deleted records of a partition: all offsets less than `before`, or None for all, including later ones."""

    before: int | None


@dataclass
class Known:
    """All records that were ever in the topic, and the deletions of the fault injection, by partition."""

    values: dict[tuple[Place, int], str] = field(default_factory=dict)
    deleted: dict[Place, Ended] = field(default_factory=dict)

    def is_deleted(self, place: Place, offset: int) -> bool:
        """Return whether the record at `offset` of the partition `place` was deleted."""
        ended = self.deleted.get(place)
        return ended is not None and (ended.before is None or offset < ended.before)


def verify(data_dir: Path, topic: str, id: str, known: Known, target: str, brokers: str) -> dict[str, int]:
    """Check that every record read is in the tables once, and that every unread record is no longer readable.

    The topology has ended after reading everything; the records that the topic has by now are added to those `known`.
    Returns the numbers of txids, of records, of reported losses, and of lost records.
    """
    for partition, offset, value in committed_values(brokers, topic):
        known.values[(id, partition), offset] = value
    verifier = Verifier(data_dir)
    read = verifier.ranges(topic)
    verifier.assert_clean()
    rows: list[Row] = verifier.table("sinks/rows").to_pylist()
    verifier.check_rows("sinks/rows", _records(read, known), key=("_txid", "partition", "offset"))
    words = {"_txid": [row["_txid"] for row in rows], "word": [row["value"].partition(" ")[0] for row in rows]}
    verifier.check_counts("counts", "word", Rows.of(words))
    verifier.assert_clean()
    unread = _check_unread(read, known)
    _check_ends(read, id, known)
    _check_sent(brokers, target, {row["value"]: row["_txid"] for row in rows})
    losses = sum(len(part.lost) for part in read.values())
    return {"txids": verifier.txids, "records": len(rows), "losses reported": losses, "records lost": unread}


def _records(read: Mapping[Place, Read], known: Known) -> Rows:
    """Return the known records in the ranges that transactions have read, with their txids."""
    by_place: dict[Place, list[tuple[int, str]]] = defaultdict(list)
    for (place, offset), value in known.values.items():
        by_place[place].append((offset, value))
    records = [
        (txid, place[1], offset, value)
        for place, part in read.items()
        for txid, start, stop in part.ranges
        for offset, value in by_place[place]
        if start <= offset < stop
    ]
    names = ("_txid", "partition", "offset", "value")
    return Rows.of({name: [record[column] for record in records] for column, name in enumerate(names)})


def _check_sent(brokers: str, target: str, kept: Mapping[str, int]) -> None:
    """Check that the target topic has exactly the sink's rows; retry, as commits are acknowledged before visible."""
    until = time.monotonic() + SECONDS
    while True:
        sent = Counter(value for _, _, value in committed_values(brokers, target))
        missing, extra = Counter(kept.keys()) - sent, sent - Counter(kept.keys())
        if extra or not missing or time.monotonic() > until:
            break
        time.sleep(0.5)
    assert not missing and not extra, (
        f"not sent: {len(missing)} of txids {sorted({kept[value] for value in missing})}; sent too often: {len(extra)} of "
        f"txids {sorted({kept.get(value, 0) for value in extra})}"
    )


def _check_unread(read: Mapping[Place, Read], known: Known) -> int:
    """Check that unread records were deleted, and lost ones are in the history; return the number of unread records."""
    count = 0
    for place, offset in known.values:
        part = read.get(place, Read())
        if any(start <= offset < stop for _, start, stop in part.ranges):
            continue
        assert known.is_deleted(place, offset), f"{place}, offset {offset} was not read, but is there"
        begins = min([start for _, start, _ in [*part.ranges, *part.lost]], default=None)
        reported = any(start <= offset and (stop is None or offset < stop) for _, start, stop in part.lost)
        assert reported or begins is None or offset < begins, (
            f"{place}, offset {offset}: no transaction reports its loss"
        )
        count += 1
    for place, part in read.items():
        for txid, start, stop in part.lost:
            ended = known.deleted.get(place)
            explained = ended is not None and (ended.before is None or (stop is not None and stop <= ended.before))
            assert explained, f"txid {txid}: {place} lost {start} to {stop}, but only {ended} was deleted"
    return count


def _check_ends(read: Mapping[Place, Read], id: str, known: Known) -> None:
    for (place, offset), _ in known.values.items():
        if place[0] == id and not known.is_deleted(place, offset):
            assert place in read and offset < read[place].next, f"{place} was read to {read.get(place)} only"
