"""Events of the window benchmarks, drawn once from a seed and shared by all sides as one file per column.

Nexmark: 2 % persons, 6 % auctions, 92 % bids. YSB: views, clicks and purchases of ads, a third each. Either has 10,000
events of the kind that the queries read (bids, or all) per second of event time; 1 % come up to 2 s late.

Times are chosen so that all systems agree on the results: none is the end of a window, which some count to the window
before it and others to the one after it, and no two are exactly 10 s apart, which some take for one session. And with a
lag of 2 s, no event is late.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

SEED = 20120117
PER_SECOND = 10_000
"""Number of events that queries read, per second of event time."""
START_MS = 1_700_000_000_000
"""Event time of the first event; the end of a window of every size in use."""
LAG_MS = 2_000
SLIDE_MS, WINDOW_MS = 2_000, 10_000
LATE = 0.01
PERSON, AUCTION, BID = range(3)
"""Kinds of Nexmark's events."""
VIEW, CLICK, PURCHASE = range(3)
"""Kinds of YSB's events."""
ADS_PER_CAMPAIGN, CAMPAIGNS = 100, 1_000
HOT, OPEN = 1_000, 19_500
"""Numbers of auctions that get half of the bids, and of those that share the other half, at any time."""
BIDDERS = 100_000
FORMS = {"nexmark": "events of all auctions", "hot": "all bids on 1,000 auctions", "ysb": "events of ads"}

Column = npt.NDArray[Any]
DTYPES: Mapping[str, type] = {
    "kind": np.int8,
    "time": np.int64,
    "auction": np.int32,
    "bidder": np.int32,
    "price": np.int32,
    "ad": np.int32,
}
"""Columns and their types; Nexmark's events have no ``ad``, and YSB's only that."""


def columns_of(form: str) -> list[str]:
    """Return the names of the columns of a form of events."""
    return ["kind", "time", "ad"] if form == "ysb" else ["kind", "time", "auction", "bidder", "price"]


def draw(form: str, events: int) -> dict[str, Column]:
    """Draw `events` events; those of a longer draw begin with them."""
    made: list[dict[str, Column]] = []
    before = 0  # events so far that queries read
    for block in range(-(-events // _BLOCK)):
        random = np.random.default_rng((SEED, block))
        part = _ads(random, before) if form == "ysb" else _auctions(random, before, block, hot=form == "hot")
        before += int((part["kind"] == BID).sum()) if form != "ysb" else _BLOCK
        made.append(part)
    return {
        name: np.concatenate([one[name] for one in made])[:events].astype(DTYPES[name]) for name in columns_of(form)
    }


_BLOCK = 100_000
"""Events that are drawn at once."""


def _auctions(random: np.random.Generator, before: int, block: int, *, hot: bool) -> dict[str, Column]:
    kinds = random.choice(np.array([PERSON, AUCTION, BID], np.int8), _BLOCK, p=[0.02, 0.06, 0.92])
    bids = kinds == BID
    first = (np.cumsum(kinds == AUCTION) + block * _BLOCK * 6 // 100) // 100 * 100  # auctions open and close
    favourite = random.random(_BLOCK) < 0.5
    drawn = np.where(favourite, random.integers(0, HOT, _BLOCK) * (OPEN // HOT), random.integers(0, OPEN, _BLOCK))
    return {
        "kind": kinds,
        "time": _times(random, before + np.cumsum(bids)),
        "auction": random.integers(0, HOT, _BLOCK) if hot else first + drawn,
        "bidder": random.integers(0, BIDDERS, _BLOCK),
        "price": (10 ** (2 + 4 * random.random(_BLOCK))).astype(np.int64),
    }


def _ads(random: np.random.Generator, before: int) -> dict[str, Column]:
    return {
        "kind": random.choice(np.array([VIEW, CLICK, PURCHASE], np.int8), _BLOCK),
        "time": _times(random, before + np.arange(_BLOCK)),
        "ad": random.integers(0, CAMPAIGNS * ADS_PER_CAMPAIGN, _BLOCK),
    }


def _times(random: np.random.Generator, places: Column) -> Column:
    """Return the times of events at these places of the stream."""
    times = places * 1000 // PER_SECOND + LAG_MS
    late = random.random(len(places)) < LATE
    times = times - np.where(late, random.integers(0, LAG_MS - 10, len(places)), 0)
    # Odd milliseconds in every other stretch of 10 s, even ones in the others; never the multiple of a slide.
    times = times // 2 * 2 + times // WINDOW_MS % 2
    return START_MS + times + np.where(times % SLIDE_MS == 0, 2, 0)


def campaign_of(ads: Column) -> Column:
    """Return the campaigns of ads, by a rule that only the table of campaigns and the expected results know."""
    return (ads.astype(np.int64) * 7919 + 13) % (CAMPAIGNS * ADS_PER_CAMPAIGN) // ADS_PER_CAMPAIGN


def campaigns(source: Mapping[str, Any]) -> Column:
    """Return the table that W3 joins: the campaign of each ad."""
    return np.fromfile(Path(source["directory"]) / "campaigns.bin", np.int32)


@contextmanager
def stored(form: str, events: int) -> Iterator[Mapping[str, Any]]:
    """Write events to files, for the block; return what sides need to read them."""
    place = Path(tempfile.mkdtemp(prefix="txstorm-bench-events-"))
    try:
        for name, column in draw(form, events).items():
            column.tofile(place / f"{name}.bin")
        ads = np.arange(CAMPAIGNS * ADS_PER_CAMPAIGN)
        campaign_of(ads).astype(np.int32).tofile(place / "campaigns.bin")
        yield {"form": form, "events": events, "directory": str(place)}
    finally:
        shutil.rmtree(place)


def read(source: Mapping[str, Any], share: range, *names: str) -> dict[str, Column]:
    """Return columns (default: all) of the events at the positions `share`."""
    place = Path(source["directory"])
    return {
        name: np.fromfile(place / f"{name}.bin", DTYPES[name], len(share), offset=share.start * DTYPES[name]().itemsize)
        for name in names or columns_of(source["form"])
    }
