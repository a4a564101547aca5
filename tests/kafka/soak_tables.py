"""Verification of the soak test's tables without txstorm: every committed record exactly once, in its transaction."""

from array import array
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from verifier import Numbers, Rows, Verifier, by_key

FACTOR, MODULUS = 1_000_003, (1 << 61) - 1


def verify(data_dir: Path, topic: str, committed: Iterable[tuple[int, int, str]]) -> tuple[Verifier, int]:
    """Check all tables against every committed (partition, offset, value) of `topic`; return verifier and number."""
    verifier = Verifier(data_dir)
    records = _located(verifier, topic, committed)
    unread = int((records["_txid"] == 0).sum())
    verifier.expect(not unread, f"{unread} records are in no transaction's range")
    verifier.check_rows("sinks/rows", records)
    verifier.check_counts("counts", "word", records)
    verifier.check_counts("trails", "word", records)
    verifier.check_counts("places", "partition", records)
    verifier.check_values("trails", "trail", "word", records, _trails(records))
    places = records["partition"]
    verifier.check_values("places", "last", "partition", records, by_key(places, records["offset"], np.maximum))
    verifier.check_values("places", "total", "partition", records, by_key(places, records["number"], np.add))
    return verifier, len(records)


def _located(verifier: Verifier, topic: str, committed: Iterable[tuple[int, int, str]]) -> Rows:
    """Return the records by partition and offset, each with the txid whose range includes it, or 0 if none does."""
    words: dict[str, int] = {}
    word, number, partition, offset = array("q"), array("q"), array("q"), array("q")
    for place, at, value in committed:
        text, _, count = value.partition(" ")
        word.append(words.setdefault(text, len(words)))
        number.append(int(count))
        partition.append(place)
        offset.append(at)
    columns = {"word": word, "number": number, "partition": partition, "offset": offset}
    order = np.lexsort((np.array(offset, np.int64), np.array(partition, np.int64)))
    found: dict[str, Numbers] = {name: np.array(column, np.int64)[order] for name, column in columns.items()}
    found["_txid"] = _txids(verifier, topic, found["partition"], found["offset"])
    return Rows(found, list(words))


def _txids(verifier: Verifier, topic: str, partition: Numbers, offset: Numbers) -> Numbers:
    """Return, for each record, the txid of the transaction whose range includes it; 0 if there is none."""
    found = np.zeros(len(offset), np.int64)
    for (_, place), read in verifier.ranges(topic).items():
        verifier.expect(not read.lost, f"partition {place}: the history has losses: {read.lost}")
        if read.ranges:
            txids, starts, stops = np.array(read.ranges, np.int64).T
            mine = np.flatnonzero(partition == place)
            at = np.searchsorted(starts, offset[mine], side="right") - 1
            inside = (at >= 0) & (offset[mine] < stops[at])
            found[mine[inside]] = txids[at[inside]]
    return found


def _trails(records: Rows) -> dict[int, int]:
    """Return the expected hash of each word, which its records have if they were processed in offset order."""
    found = dict.fromkeys(range(len(records.texts)), 0)
    for word, number in zip(records["word"].tolist(), records["number"].tolist(), strict=True):
        found[word] = (found[word] * FACTOR + number + 1) % MODULUS
    return found
