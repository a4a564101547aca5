"""Producer of posts with tags (JSON lines) and of sales (CSV), with duplicates, bad lines and late rows.

python -m jobs.producers.trends_and_sales posts    writes posts/1.jsonl to posts/3.jsonl, for jobs/trends_per_hour.toml
python -m jobs.producers.trends_and_sales sales    writes sales/1.csv to sales/3.csv, for txstorm example --pipeline

The same rows come out at each call. They are up to two minutes out of order; late sales are three hours behind.
"""

import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

from jobs.producers.card_fraud import drawn

START, MINUTE = datetime(2026, 1, 31, 12, tzinfo=UTC), timedelta(minutes=1)
FILES, POSTS, SALES = 3, 600, 300
TAGS = ("Storm", "spark", " spark", "kafka", "delta", "Kafka ", "arrow")
SHOPS = (" North ", "north", "South", "east", "")
AMOUNTS = ("12.50", "3.10", "0.07", "7.405", "-3.10", "0", "250")
BAD = {"posts": '{"at": "yesterday", "tag": "storm"}', "sales": "-1,2026-01-31T13:00:00Z,north,a lot"}


class Sale(NamedTuple):
    """One row of the sales: an empty shop is no shop; a late one is behind the watermark."""

    id: int
    at: datetime
    shop: str
    amount: Decimal
    late: bool


def posts() -> list[tuple[datetime, str]]:
    """Return the posts in their order of arrival."""
    return [(_time(id, "post", 1), drawn(id, "tag", TAGS[id % 3 :])) for id in range(POSTS)]


def sales() -> list[Sale]:
    """Return the sales in their order of arrival, each once."""
    made = []
    for id in range(SALES):
        late = id > SALES // 2 and drawn(id, "late", range(15)) == 0
        at = _time(id, "sale", 2) - (180 * MINUTE if late else timedelta())
        made.append(Sale(id, at, drawn(id, "shop", SHOPS), Decimal(drawn(id, "amount", AMOUNTS)), late))
    return made


def lines(kind: str) -> list[str]:
    """Return the lines of all files of a kind, without headers: a third belongs to each file."""
    if kind == "posts":
        made = [json.dumps({"at": at.isoformat(), "tag": tag}) for at, tag in posts()]
    else:
        rows = [f"{one.id},{one.at.isoformat()},{one.shop},{one.amount}" for one in sales()]
        made = [row for id, row in enumerate(rows) for row in (row, rows[max(0, id - 20)])[: 1 + (id % 10 == 7)]]
    return [*made[:100], BAD[kind], *made[100:]]


def write(kind: str, into: Path) -> None:
    """Write the files of a kind into a directory."""
    into.mkdir(parents=True, exist_ok=True)
    made, header = lines(kind), [] if kind == "posts" else ["id,at,shop,amount"]
    for number in range(FILES):
        part = [*header, *made[number * len(made) // FILES : (number + 1) * len(made) // FILES]]
        path = into / f"{number + 1}.{'jsonl' if kind == 'posts' else 'csv'}"
        path.write_text("".join(f"{line}\n" for line in part), encoding="utf-8")


def main(argv: Sequence[str]) -> int:
    """Write the files of one kind into the directory of its name; return the exit code."""
    if len(argv) != 1 or argv[0] not in BAD:
        print(f"error: expected posts or sales, got {' '.join(argv) or 'nothing'}", file=sys.stderr)
        return 2
    write(argv[0], Path(argv[0]))
    return 0


def _time(id: int, kind: str, minutes: int) -> Any:
    """Return the time of a row: a row per `minutes` / 3, whole minutes for many, up to two minutes out of order."""
    back = drawn(id, kind, (0, 0, 0, 20, 40, 100))
    return START + timedelta(seconds=20 * minutes * id - back)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
