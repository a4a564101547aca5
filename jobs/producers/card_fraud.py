"""Producer of card payments, in files of JSON lines: small ones in a row, large ones, some at once, and bad lines.

python -m jobs.producers.card_fraud                writes jobs/data/payments-1.jsonl to payments-3.jsonl

The same payments come out at each call. Those of one second are told apart only by their order in the files.
"""

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[1] / "data"
START, FILES, EACH, CARDS = datetime(2026, 1, 31, 12, tzinfo=UTC), 3, 200, 12
AMOUNTS = ("0.50", "1", "1.99", "2.50", "4.75", "5.00", "5.01", "249.99", "250", "499.99", "1250.00")


def drawn(id: int, kind: str, among: Sequence[Any]) -> Any:
    """Return one of several values, by a hash."""
    return among[int.from_bytes(sha256(f"{kind} {id}".encode()).digest()[:8]) % len(among)]


def lines(file: int) -> list[str]:
    """Return the lines of a file; the first is 1."""
    made, now = list[str](), START + timedelta(hours=file)
    for id in range((file - 1) * EACH, file * EACH):
        now += timedelta(seconds=drawn(id, "pause", (0, 0, 10, 40)))
        card, amount = f"card-{drawn(id, 'card', range(CARDS)):02}", drawn(id, "amount", AMOUNTS)
        made.append(json.dumps({"id": id, "card": card, "at": now.isoformat(), "amount": amount}))
    return [*made[:50], json.dumps({"id": -file, "card": "card-00", "at": "noon", "amount": "1"}), *made[50:]]


if __name__ == "__main__":
    for number in range(1, FILES + 1):
        (DATA / f"payments-{number}.jsonl").write_text("".join(f"{line}\n" for line in lines(number)), encoding="utf-8")
