"""Generator of the four files beside it: 20,000 hashtags of 200, distributed by Zipf's law; always the same.

python jobs/data/hashtags/generate.py
"""

import random
from itertools import product
from pathlib import Path

FIRST = "blue red green wild old new slow fast little great".split()
SECOND = "fox moon river train coffee garden song kite winter city bread storm lake bridge cat tea sun field boat night"
HASHTAGS = [f"#{first}{second}" for first, second in product(FIRST, SECOND.split())]


def main() -> None:
    """Write the files; the hashtag of rank r is 1/r times as frequent as the first."""
    rng = random.Random(32)  # noqa: S311 - hashtags are no secrets
    ranked = rng.sample(HASHTAGS, len(HASHTAGS))
    for number in range(1, 5):
        tags = rng.choices(ranked, [1 / rank for rank in range(1, len(ranked) + 1)], k=5000)
        Path(__file__).with_name(f"hashtags-{number}.txt").write_text("\n".join(tags) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
