"""Random numbers for tests: each test draws from its own seed, which is printed so that a failure can be repeated."""

import os
import random


def seeded() -> random.Random:
    """Return a generator with a random seed, or with that of the environment variable SEED; print its seed."""
    seed = int(os.environ.get("SEED", random.randrange(1 << 32)))
    print("seed", seed)
    return random.Random(seed)
