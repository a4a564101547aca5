"""Checks of the tables of the crash grid's topology, for any source; uses only `verifier` to read them.

The rows in the sink are compared with the extents that the transactions have read; counts and sum, change by change,
with the rows in the sink.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crash_cells import PARTITIONS, word
from programs import Program, loaded
from recovery_cases import environment
from servers.kafka_reading import committed_records
from servers.running import Kafka
from verifier import Row, Rows, Verifier

CHANGED = ("changes/counts", "changes/totals", "sinks/rows")
"""The tables that every transaction changes."""
OTHERS = ("state/counts", "state/totals")

Kept = tuple[int, int, int, str]
"""A row of the sink: partition, offset, generation, word."""


@dataclass(frozen=True)
class Tables:
    """The sorted rows of the sink by txid, the epochs of the coordinators that led the tables, and the history."""

    rows: Mapping[int, list[Kept]]
    epochs: frozenset[int]
    history: Sequence[Row]

    def batches(self) -> dict[int, dict[int, tuple[int, int, int]]]:
        """Return txid → partition → (first offset, number of rows, generation)."""
        return {
            txid: {
                partition: _batch([(offset, made) for at, offset, made, _ in rows if at == partition])
                for partition in sorted({at for at, *_ in rows})
            }
            for txid, rows in self.rows.items()
        }


def verify(data_dir: Path, *, swept: bool = True) -> Tables:
    """Check all invariants independent of the source's content; with `swept`, also that no file is unreferenced."""
    verifier = Verifier(data_dir)
    epochs = verifier.check_logs(CHANGED, OTHERS, swept=swept)
    verifier.assert_clean()  # only then can the tables be read
    kept: dict[int, list[Kept]] = defaultdict(list)
    for row in verifier.table("sinks/rows").to_pylist():
        kept[row["_txid"]].append((row["partition"], row["offset"], row["generation"], row["word"]))
    verifier.expect(set(kept) == {*range(1, verifier.txids + 1)}, "a transaction has kept no row")
    rows = {txid: sorted(kept[txid]) for txid in sorted(kept)}
    with verifier.noting("sinks/rows"):
        _check_offsets(rows)
    columns = [(txid, row[3]) for txid, some in rows.items() for row in some]
    verifier.check_counts(
        "counts", "word", Rows.of({"_txid": [txid for txid, _ in columns], "word": [word for _, word in columns]})
    )
    _check_totals(verifier, rows)
    verifier.assert_clean()
    return Tables(rows, epochs, verifier.history)


def check_extents(history: Sequence[Row], batches: Mapping[int, Mapping[int, tuple[int, int, int]]]) -> None:
    """Check that the history records `batches` as the extents of the memory spout."""
    for row in history:
        read = {int(p): (start, count) for p, (start, count) in json.loads(row["extents"])["meta"].items() if count}
        assert read == {p: (start, count) for p, (start, count, _) in batches[row["txid"]].items()}, row


def produce(kafka: Kafka, topic: str, offsets: range) -> None:
    """Write rows of both partitions of the source, of the first generation, to a topic."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 0})
    for partition in PARTITIONS:
        for offset in offsets:
            producer.produce(topic, word(partition, offset, 0), partition=partition)
    assert producer.flush(30) == 0


def check_sent(brokers: str, target: str, rows: Mapping[int, list[Kept]]) -> None:
    """Check that read-committed consumers of the topic find each row of the sink once, with its txid."""
    sent = Counter((record.txid, record.value["word"]) for record in committed_records(brokers, target))
    assert sent == Counter((txid, kept) for txid, some in rows.items() for *_, kept in some)


def start_grid(place: Path, arguments: Sequence[Any], *options: str, **environ: str) -> Program:
    """Start ``txstorm run`` of the topology, with arguments as of `scenarios.grid.from_source` and its data in `place`."""
    target = f"scenarios.grid:from_source({', '.join(map(repr, arguments))})"
    command = ["run", target, "--engine", "local", "--data-dir", str(place / "data"), "--json", *options]
    return loaded().start("-m", "txstorm", *command, env=environment(**environ))


def _batch(rows: list[tuple[int, int]]) -> tuple[int, int, int]:
    """Return (first offset, number of rows, generation) of one transaction and partition."""
    generations = {generation for _, generation in rows}
    assert len(generations) == 1, f"one transaction holds rows of two attempts: {rows}"
    return rows[0][0], len(rows), generations.pop()


def _check_offsets(rows: Mapping[int, list[Kept]]) -> None:
    """Check that every offset of each partition occurs once, in transaction order, from the first one without gaps."""
    ends: Counter[int] = Counter()
    for txid, some in rows.items():
        for partition, offset, *_ in some:
            assert offset == ends[partition], f"txid {txid}, partition {partition}: {offset}, not {ends[partition]}"
            ends[partition] += 1


def _check_totals(verifier: Verifier, rows: Mapping[int, list[Kept]]) -> None:
    """Check the totals after each transaction: the sum of the rows so far, and its txid."""
    before, expected = None, []
    for txid, some in rows.items():
        now = {"rows": (before or {"rows": 0})["rows"] + len(some), "txid": txid}
        expected.append((txid, now, before))
        before = now
    changes = sorted(verifier.table("changes/totals").to_pylist(), key=lambda row: row["_txid"])
    values = [(row["_txid"], {"rows": row["rows"], "txid": row["txid"]}, row["_prev"]) for row in changes]
    verifier.expect(values == expected, f"changes/totals: {values}, expected {expected}")
    state = [{"rows": row["rows"], "txid": row["txid"]} for row in verifier.table("state/totals").to_pylist()]
    verifier.expect(state == [before], f"state/totals: {state}, expected {before}")
