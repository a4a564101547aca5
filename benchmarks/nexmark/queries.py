"""Queries of the window benchmarks, their results by numpy, and the comparison of a side's results with these.

A result row is (key, end, n, value): the key, the end of the window in milliseconds, the number of events, and for q7
the highest price, else 0. Only windows that the watermark has passed after the last event count, whether or not a side
also closes the others at the end of its input.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.nexmark.events import AUCTION, BID, LAG_MS, PERSON, SLIDE_MS, VIEW, WINDOW_MS, Column, campaign_of, read

DIGEST, ROWS, DATA = "digest.json", "rows.parquet", "data"
"""What a side leaves in its directory: a digest of its results, the rows, or a data directory of txstorm."""


class WrongResult(Exception):
    """The results of a side differ from those of numpy."""


@dataclass(frozen=True)
class Query:
    """One query.

    Attributes:
        title: the query in words.
        events: form of its events.
        chosen: kind of the events that it reads.
        key: field of the key.
        slide: slide of the windows in milliseconds; 0: sessions.
        highest: whether the highest price is part of the results.
        top: whether only the key with the most events of each window counts, of equal ones the lowest.
        joined: only keys count that have an event of this kind, too, in the same window; None: all.
    """

    title: str
    events: str = "nexmark"
    chosen: int = BID
    key: str = "auction"
    slide: int = WINDOW_MS
    highest: bool = False
    top: bool = False
    joined: int | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the events that the query reads."""
        key = "ad" if self.key == "campaign" else self.key
        return ("kind", "time", key, *(["price"] if self.highest else []))


QUERIES: Mapping[str, Query] = {
    "q5": Query("auction with the most bids, 10 s every 2 s", slide=SLIDE_MS, top=True),
    "q5-hot": Query(
        "auction with the most bids of 1,000 auctions, 10 s every 2 s", events="hot", slide=SLIDE_MS, top=True
    ),
    "q7": Query("bids and highest price per auction, every 10 s", highest=True),
    "q8": Query("new persons with auctions, every 10 s", chosen=AUCTION, key="bidder", joined=PERSON),
    "q11": Query("bids per session of a bidder, gap 10 s", key="bidder", slide=0),
    "q12": Query("bids per bidder, every 10 s", key="bidder"),
    "w3": Query("views of ads per campaign, every 10 s", events="ysb", chosen=VIEW, key="campaign"),
}


def until(source: Mapping[str, Any], query: Query, events: int) -> int:
    """Return the watermark in milliseconds after so many events: later windows do not count."""
    found = read(source, range(events), "kind", "time")
    kinds = [query.chosen] if query.joined is None else [query.chosen, query.joined]
    return min(int(found["time"][found["kind"] == kind].max()) for kind in kinds) - LAG_MS


def expected(source: Mapping[str, Any], name: str, events: int) -> pa.Table:
    """Return the result rows of the first `events` events, by numpy."""
    query = QUERIES[name]
    rows = _counted(source, query, events)
    if query.joined is not None:
        there = _counted(source, replace(query, chosen=query.joined), events)
        rows = rows.join(there.select(["key", "end"]), ["key", "end"], join_type="left semi")
    return best(rows) if query.top else rows


def _counted(source: Mapping[str, Any], query: Query, events: int) -> pa.Table:
    """Return the windows or sessions of the events of the kind that the query reads."""
    found = read(source, range(events), *query.columns)
    chosen = found["kind"] == query.chosen
    times = found["time"][chosen]
    keys = campaign_of(found["ad"][chosen]) if query.key == "campaign" else found[query.key][chosen].astype(np.int64)
    values = found["price"][chosen].astype(np.int64) if query.highest else np.zeros(len(keys), np.int64)
    if query.slide:
        keys, ends, counts, values = _windows(query, keys, times, values)
    else:
        keys, ends, counts, values = _sessions(keys, times)
    return pa.table({"key": keys, "end": ends, "n": counts, "value": values})


def _windows(query: Query, keys: Column, times: Column, values: Column) -> tuple[Column, Column, Column, Column]:
    first = -(-times // query.slide)
    copies = WINDOW_MS // query.slide
    ends = (first[:, None] + np.arange(copies)).ravel()
    least, width = int(ends.min()), int(ends.max() - ends.min()) + 1
    codes = np.repeat(keys, copies) * width + ends - least
    order = np.argsort(codes, kind="stable")
    found, begins, counts = np.unique(codes[order], return_index=True, return_counts=True)
    highest = np.maximum.reduceat(np.repeat(values, copies)[order], begins)
    return found // width, (found % width + least) * query.slide, counts, highest


def _sessions(keys: Column, times: Column) -> tuple[Column, Column, Column, Column]:
    order = np.lexsort((times, keys))
    keys, times = keys[order], times[order]
    begins = np.r_[True, (keys[1:] != keys[:-1]) | (times[1:] - times[:-1] > WINDOW_MS)]
    starts = np.flatnonzero(begins)
    lasts = np.r_[starts[1:], len(keys)] - 1
    return keys[starts], times[lasts] + WINDOW_MS, lasts - starts + 1, np.zeros(len(starts), np.int64)


def best(rows: pa.Table) -> pa.Table:
    """Return the row with the most events of each window, of equal ones that with the lowest key."""
    key, end, n = (rows[name].to_numpy() for name in ("key", "end", "n"))
    order = np.lexsort((key, -n, end))
    _, first = np.unique(end[order], return_index=True)
    return rows.take(pa.array(order[first]))


def digest(rows: pa.Table, limit: int) -> list[int]:
    """Return the number of rows with ends up to `limit`, the sum of events, and a sum over all columns."""
    key, end, n, value = (rows[name].to_numpy().astype(np.int64) for name in ("key", "end", "n", "value"))
    there = end <= limit
    mixed = (key * 31 + end + n * 17 + value) % 1_000_003
    return [int(there.sum()), int(n[there].sum()), int(mixed[there].sum())]


@cache
def _wanted(directory: str, form: str, name: str, events: int) -> tuple[int, list[int]]:
    source = {"directory": directory, "form": form}
    limit = until(source, QUERIES[name], events)
    return limit, digest(expected(source, name, events), limit)


def compare(side: str, name: str, events: int, source: Mapping[str, Any], directory: Path) -> None:
    """Compare the results that `side` left in `directory`, of the first `events` events, with those of numpy.

    Raises:
        WrongResult: they differ; the message has both.
    """
    limit, wanted = _wanted(source["directory"], source["form"], name, events)
    found = _found(QUERIES[name], directory, limit)
    if found != wanted:
        msg = f"{side}, {name} of {events:,} events: WRONG: expected [rows, events, sum] = {wanted}, got {found}"
        raise WrongResult(msg)


def _found(query: Query, directory: Path, limit: int) -> list[int]:
    if (directory / DIGEST).exists():
        read_digest: list[int] = json.loads((directory / DIGEST).read_text())
        return read_digest
    if (directory / ROWS).exists():
        rows = pq.read_table(directory / ROWS)
    else:
        from benchmarks.nexmark.topologies import results_of

        rows = results_of(query, directory / DATA)
    return digest(best(rows) if query.top else rows, limit)


def leave_rows(directory: str, rows: pa.Table) -> None:
    """Write result rows (key, end, n, value) for the comparison."""
    pq.write_table(rows, Path(directory) / ROWS)
