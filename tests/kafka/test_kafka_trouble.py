"""Random faults of all kinds in a topology from Kafka to Delta, with the tables checked by an independent verifier.

The seed is printed; ``TXSTORM_TROUBLE_SEED`` overrides it, and ``TXSTORM_TROUBLE_MINUTES`` sets the total duration
of the long runs. A seed reproduces the sequence of faults, not the timing of threads and processes.
"""

import os
import random
import time

import pytest
from servers.running import start_kafka
from trouble import HARMLESS, LOSSY, World

pytestmark = pytest.mark.integration

MINUTES = float(os.environ.get("TXSTORM_TROUBLE_MINUTES", "5"))


def seed(default: int) -> int:
    return int(os.environ.get("TXSTORM_TROUBLE_SEED", default))


KILLED_SERVERS = ("broker_killed", "zookeeper_killed")
"""Left to the long runs: each is another JVM, and other tests kill these servers once each."""


@pytest.mark.slow
def test_some_random_faults(kafka_broker, zookeeper_server, tmp_path, progress):
    chosen = seed(337)  # this seed draws a broad selection of faults
    progress(f"TXSTORM_TROUBLE_SEED={chosen}")
    with World(kafka_broker, zookeeper_server, tmp_path, seed=chosen, say=progress, longest=1.0) as made:
        made.inject(made.rng.sample([one for one in [*HARMLESS, *LOSSY] if one not in KILLED_SERVERS], 6), at_once=3)
        found = made.end()
    assert found["records"]


@pytest.mark.long
@pytest.mark.parametrize("lossy", [True, False], ids=["opaque", "transactional"])
@pytest.mark.timeout(0)
def test_all_kinds_of_random_faults(zookeeper_server, tmp_path, progress, lossy):
    chosen = seed(random.randrange(1 << 30))
    progress(f"TXSTORM_TROUBLE_SEED={chosen}")
    with start_kafka(tmp_path / "kafka", brokers=3) as kafka:
        options = {"seed": chosen, "say": progress, "lossy": lossy, "longest": 8.0}
        with World(kafka, zookeeper_server, tmp_path, **options) as made:
            until = time.monotonic() + MINUTES * 30
            while time.monotonic() < until:
                some = made.rng.sample([*HARMLESS, *LOSSY] if lossy else HARMLESS, 3)
                made.inject(some, at_once=made.rng.randint(1, 3))
            found = made.end()
    assert found["records"]
