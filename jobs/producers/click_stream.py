"""Producer of a click stream with duplicates, bad lines and late clicks, and of the rows that it must lead to.

python -m jobs.producers.click_stream              writes jobs/data/clicks.txt and jobs/data/clicks_expected.txt

Clicks are JSON with an id, a user, a page and a time in ms, of whole seconds, so that many are exactly at the end of a
minute. Lines are up to 20 s out of order; late clicks are ten minutes behind. What is expected is computed from all
clicks at once, in plain Python.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[1] / "data"
CLICKS, EXPECTED = DATA / "clicks.txt", DATA / "clicks_expected.txt"
START, SECOND, MINUTE, GAP = 1_769_860_800_000, 1000, 60_000, 20_000
NUMBER, LATE_FROM = 360, 180
BAD = ('{"id": 9001, "user": "u1", "pa', '["not", "an", "object"]', '{"id": 9002, "user": "u2", "page": "/cart"}')


def chosen(number: int, kind: int, among: Sequence[Any]) -> Any:
    """Return one of several values, which is the same at each call, but looks random."""
    return among[(number * 2_654_435_761 + kind * 40_503_217) % (1 << 32) // 65_537 % len(among)]


def clicks() -> list[dict[str, Any]]:
    """Return the clicks in their order of arrival, without duplicates and bad lines; the late ones say so."""
    made, now = list[dict[str, Any]](), 0
    for id in range(NUMBER):
        now += chosen(id, 1, (0, 1, 1, 2, 2, 4))
        is_late = id > LATE_FROM and not chosen(id, 2, range(40))
        time = max(0, now - chosen(id, 3, range(20)))
        if now % 60 < 20 and chosen(id, 4, (True, False)):
            time = now // 60 * 60
        user, page = f"u{chosen(id, 5, range(12))}", chosen(id, 6, ("/home", "/home", "/search", "/item", "/cart"))
        time = now - 600 if is_late else time
        made.append({"id": id, "user": user, "page": page, "time": START + SECOND * time, "late": is_late})
    return made


def lines() -> list[str]:
    """Return the lines of the stream."""
    made = list[str]()
    for one in clicks():
        made.append(json.dumps({name: one[name] for name in ("id", "user", "page", "time")}))
        if not chosen(one["id"], 7, range(12)):
            made.append(made[-1 - chosen(one["id"], 8, range(min(len(made), 60)))])
    for number, bad in enumerate(BAD):
        made.insert(80 * (number + 1), bad)
    return made


def expected() -> dict[str, list[Any]]:
    """Return pages per minute for both conventions, sessions per user, and the ids of late clicks."""
    on_time = [one for one in clicks() if not one["late"]]
    found: dict[str, list[Any]] = {"late": [one["id"] for one in clicks() if one["late"]]}
    for closed in ("right", "left"):
        counts: dict[tuple[str, int], int] = {}
        for one in on_time:
            end = one["time"] // MINUTE * MINUTE + MINUTE if closed == "left" else -(-one["time"] // MINUTE) * MINUTE
            counts[one["page"], end] = counts.get((one["page"], end), 0) + 1
        found[closed] = sorted([page, end - MINUTE, end, n] for (page, end), n in counts.items())
    sessions: list[list[Any]] = []
    for one in sorted(on_time, key=lambda one: (one["user"], one["time"])):
        last = sessions[-1] if sessions else None
        if last is not None and last[0] == one["user"] and one["time"] < last[2]:
            last[2:] = [one["time"] + GAP, last[3] + 1]
        else:
            sessions.append([one["user"], one["time"], one["time"] + GAP, 1])
    return {**found, "sessions": sorted(sessions)}


if __name__ == "__main__":
    CLICKS.write_text("".join(f"{line}\n" for line in lines()), encoding="utf-8")
    rows = [json.dumps([name, one]) for name, some in expected().items() for one in some]
    EXPECTED.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
