"""Trending hashtags at least once: the stages in a loop, states in memory, positions of the files stored each second.

No ledger, no intents, no runtime: what is lost by a crash is read again from the last positions, into states that begin
empty. ``store=False`` is the bare loop.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from jobs.trending_hashtags import convert

EVERY = 500
STORED = 1.0
"""Seconds between two writes of the positions."""


def keep_largest(kept: Mapping[str, int], new: Mapping[str, int], n: int) -> dict[str, int]:
    """Return the `n` tags with the largest counts, by count falling, then tag rising; of two counts the larger one."""
    merged = dict(kept)
    for tag, count in new.items():
        if count > merged.get(tag, 0):
            merged[tag] = count
    return dict(sorted(merged.items(), key=lambda one: (-one[1], one[0]))[:n])


class Loop:
    """The stages of `jobs.trending_hashtags`, in the same numbers of instances.

    Args:
        place: directory of the positions, and of what the sink writes.
    """

    def __init__(
        self, paths: Sequence[str | Path], place: Path, *, n: int = 20, counts: int = 2, topns: int = 2
    ) -> None:
        self._files: list[BinaryIO] = [open(path, "rb") for path in paths]
        self._place, self._n = place, n
        self.counts: list[Counter[str]] = [Counter() for _ in range(counts)]
        self._topns: list[dict[str, int]] = [{} for _ in range(topns)]
        self.top: dict[str, int] = {}
        self._seen = 0
        self._stored_at = time.monotonic()

    def run(self, batches: int, rows: int, *, store: bool = True) -> None:
        """Take batches of so many records, evenly from all files."""
        for _ in range(batches):
            records = [line for file in self._files for line in _lines(file, rows // len(self._files))]
            self._process(records)
            if store and time.monotonic() - self._stored_at >= STORED:
                self._store()
        for file in self._files:
            file.close()

    def _process(self, records: Sequence[bytes]) -> None:
        arrived: list[Counter[str]] = [Counter() for _ in self.counts]
        for record in records:
            made = convert(record)
            if made is not None:
                tag, number = made
                arrived[hash(tag) % len(arrived)][tag] += number
        for topn, kept in enumerate(self._topns):
            changed: dict[str, int] = {}
            for counts, new in zip(self.counts, arrived, strict=True):
                for tag, number in new.items():
                    if hash(tag) % len(self._topns) == topn:
                        counts[tag] += number
                        changed[tag] = counts[tag]
            self._topns[topn] = keep_largest(kept, changed, self._n)
            self.top = keep_largest(self.top, self._topns[topn], self._n)
            self._seen += 1
            if self._seen % EVERY == 0:
                (self._place / "trends.json").write_text(json.dumps(self.top))

    def _store(self) -> None:
        """Write the positions durably."""
        self._stored_at = time.monotonic()
        path = self._place / "positions.json.tmp"
        with path.open("w") as file:
            json.dump([one.tell() for one in self._files], file)
            file.flush()
            os.fsync(file.fileno())
        path.rename(self._place / "positions.json")


def _lines(file: Any, count: int) -> list[bytes]:
    return list(islice(iter(file.readline, b""), count))  # a file that is iterated does not tell its position
