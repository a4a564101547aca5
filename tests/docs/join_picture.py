"""Draws an interval join between two transactions, from the tables of a run: positions, bound, pending and kept rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from txstorm import Duration, StateView, Topology, TransactionalTopologyBuilder
from txstorm.joins import IntervalJoin, Side
from txstorm.joins.interval.join_records import COMPONENT, JoinRecord
from txstorm.testing import FeedSpout, TopologyTestDriver

VIEWS = {"v1": 10, "v2": 18, "v3": 29, "v4": 40, "v5": 44}
CLICKS = {"c1": 3, "c2": 14, "c3": 22, "c4": 27, "c5": 33, "c6": 36}
BATCHES = [(("v1", "v2", "v3"), ("c1", "c2", "c3")), (("v4", "v5"), ("c4", "c5", "c6"))]
BEFORE, AFTER = 5, 10


def topology() -> Topology:
    feed = FeedSpout({"views": ("view", "ad", "at"), "clicks": ("click", "ad", "at")})
    views = Side("feed", "views", key="ad", time="at", unit="s", id="view")
    clicks = Side("feed", "clicks", key="ad", time="at", unit="s", id="click")
    join = IntervalJoin(views, clicks, before=Duration.seconds(BEFORE), after=Duration.seconds(AFTER), how="left")
    builder = TransactionalTopologyBuilder("clicks-and-views", "feed", feed)
    builder.set_bolt("join", join).fields_grouping("feed", "views", ["ad"]).fields_grouping("feed", "clicks", ["ad"])
    return builder.build_topology()


@dataclass(frozen=True)
class Moment:
    """State of the join after the last transaction, in seconds: ids of stored rows, positions, bound, joined pairs."""

    pending: set[str]
    kept: set[str]
    right: float
    left: float
    bound: float
    pairs: list[tuple[str, str]]

    @classmethod
    def of_a_run(cls) -> Moment:
        with TemporaryDirectory() as place:
            data_dir = Path(place) / "data"
            with TopologyTestDriver(topology(), data_dir=data_dir) as driver:
                for views, clicks in BATCHES:
                    rows = {
                        "views": [(one, "x", VIEWS[one]) for one in views],
                        "clicks": [(one, "x", CLICKS[one]) for one in clicks],
                    }
                    driver.commit(driver.feed(rows))
                pairs = [(row[0], row[3]) for row in driver.emitted("join")]
            records = {row["unit"]: row["record"] for row in StateView(data_dir, "join-progress").to_pylist()}
            join = JoinRecord.read(records[COMPONENT])
            pending, kept = (
                {row["id"] for row in StateView(data_dir, f"join-{side}").to_pylist()} for side in ("left", "right")
            )
        times = [join.right.watermark, join.left.watermark, join.bound]
        return cls(pending, kept, *(time / 1e6 for time in times if time is not None), pairs)


STYLE = (
    ".ink{fill:#1f2933}.muted{fill:#616e7c}.line{stroke:#9aa5b1}.left{fill:#1f6feb;stroke:#1f6feb}"
    ".right{fill:#c2410c;stroke:#c2410c}.open{fill:#fff}.area{fill:#1f6feb;opacity:.12}.pair{stroke:#9aa5b1}"
    ".p{stroke:#c2410c}.b{stroke:#616e7c}.gone{opacity:.4}"
    "@media (prefers-color-scheme:dark){.card{fill:#0f141a}.ink{fill:#e8edf2}.muted{fill:#9aa5b1}.open{fill:#0f141a}"
    ".left{fill:#58a6ff;stroke:#58a6ff}.right{fill:#f0a546;stroke:#f0a546}.p{stroke:#f0a546}.area{fill:#58a6ff}"
    ".open.left,.open.right{fill:#0f141a}}"
    "text{font:13px system-ui,sans-serif}.open.left,.open.right{fill:#fff}"
)
WIDTH, HEIGHT, ORIGIN, SCALE = 780, 300, 90, 13.5
LEFT_LANE, RIGHT_LANE, AXIS = 90, 180, 225


def drawn(moment: Moment) -> str:
    title = "An interval join between two transactions: positions, bound, pending and kept rows"
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'role="img" aria-label="{title}" style="max-width:100%"><title>{title}</title><style>{STYLE}</style>'
        f'<rect class="card" width="{WIDTH}" height="{HEIGHT}" rx="8" fill="#fff"/>'
    )
    return "\n".join([head, *_lanes(), *_bounds(moment), *_lines(moment), *_rows(moment), *_legend(), "</svg>"])


def _x(seconds: float) -> float:
    return round(ORIGIN + seconds * SCALE, 1)


def _text(x: float, y: float, text: str, kind: str = "muted", anchor: str = "middle") -> str:
    return f'<text class="{kind}" x="{x}" y="{y}" text-anchor="{anchor}">{text}</text>'


def _line(kind: str, start: tuple[float, float], end: tuple[float, float], style: str = "") -> str:
    (x1, y1), (x2, y2) = start, end
    return f'<line class="{kind}" x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"{style}/>'


def _circle(kind: str, x: float, y: float) -> str:
    return f'<circle class="{kind}" cx="{x}" cy="{y}" r="6" stroke-width="2"/>'


def _lanes() -> Iterator[str]:
    for y, name in ((LEFT_LANE, "left"), (RIGHT_LANE, "right")):
        yield _line("line", (_x(0), y), (_x(48), y)) + _text(16, y + 4, name, "ink", "start")
    yield _text(16, AXIS + 4, "time", "ink", "start")
    yield "".join(_text(_x(second), AXIS + 4, f"{second} s") for second in range(0, 50, 10))


def _bounds(moment: Moment) -> Iterator[str]:
    """Yield the area of the right times that match the oldest pending row."""
    oldest = min(VIEWS[one] for one in moment.pending)
    corners = ((oldest, LEFT_LANE), (oldest - BEFORE, RIGHT_LANE), (oldest + AFTER, RIGHT_LANE))
    yield '<polygon class="area" points="{}"/>'.format(" ".join(f"{_x(time)},{y}" for time, y in corners))
    for view, click in moment.pairs:
        yield _line("pair", (_x(VIEWS[view]), LEFT_LANE), (_x(CLICKS[click]), RIGHT_LANE), ' stroke-width="1.5"')


def _lines(moment: Moment) -> Iterator[str]:
    lines = (("p", moment.right, "P, right position", 30, "start", 4), ("b", moment.bound, "B, bound", 30, "end", -4))
    for kind, time, name, top, anchor, aside in lines:
        x, style = _x(time), ' stroke-width="2" stroke-dasharray="5 4"'
        label = _text(x + aside, top, f"{name}: {time:g} s", "ink", anchor)
        yield _line(kind, (x, top + 6), (x, RIGHT_LANE + 9), style) + label


def _rows(moment: Moment) -> Iterator[str]:
    for rows, y, side, stored, above in (
        (VIEWS, LEFT_LANE, "left", moment.pending, -14),
        (CLICKS, RIGHT_LANE, "right", moment.kept, 22),
    ):
        for one, time in rows.items():
            # Filled: a left row that is released, a right row that is kept.
            filled = (one in stored) == (side == "right")
            gone = side == "right" and one not in stored
            kind = f"{side}{'' if filled else ' open'}{' gone' if gone else ''}"
            yield _circle(kind, _x(time), y) + _text(_x(time), y + above, one, "ink")


def _legend() -> Iterator[str]:
    entries = (
        (90, "left", "left, released"),
        (210, "left open", "left, pending"),
        (325, "right", "right, kept"),
        (430, "right open gone", "right, expired"),
    )
    for x, kind, text in entries:
        yield _circle(kind, x, 266) + _text(x + 12, 270, text, anchor="start")
    pair = _line("pair", (550, 266), (572, 266), ' stroke-width="1.5"')
    yield pair + _text(580, 270, "pair", anchor="start")
    area = '<rect class="area" x="625" y="259" width="22" height="14"/>'
    yield area + _text(655, 270, "bounds of v3", anchor="start")
