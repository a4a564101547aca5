"""Random schedules of acks, failures and restarts, and commits until a source has run dry."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from txstorm.api.attempt import TransactionAttempt
from txstorm.api.names import DEFAULT_STREAM
from txstorm.testing.checks.rules import CheckFailed
from txstorm.testing.driver import COMMITTING, PROCESSING, TopologyTestDriver

ACTIONS = 30
DRY, DONE = 24, 3
"""Number of consecutive empty transactions, or refusals to start one, after which a source is considered dry: `DONE` if
the spout reports that everything is read (`reached`), else `DRY`, as partitions may be unavailable half of the time."""
LIMIT = 100
PATIENCE = 5.0
"""Maximum number of seconds that a source may take to deliver data that it has reported."""
Tuples = Counter[str]
"""Tuples as text, with the number of occurrences of each."""


def play(driver: TopologyTestDriver, rng: random.Random, restart: Callable[[], None]) -> None:
    """Ack, fail and restart at random, then commit the remainder of the source."""
    for _ in range(ACTIONS):
        _act(driver, rng, restart)
    drain(driver)


def _act(driver: TopologyTestDriver, rng: random.Random, restart: Callable[[], None]) -> None:
    waiting = [txid for txid, status in driver.active.items() if status in (PROCESSING, COMMITTING)]
    action = rng.random()
    if action < 0.1:
        restart()
    elif not waiting:
        driver.next_tuple()
    elif action < 0.35:
        driver.fail(rng.choice(list(driver.active)))
    else:
        driver.ack(rng.choice(waiting))


def drain(driver: TopologyTestDriver) -> None:
    """Commit until the source is dry: many times in a row, it has started no transaction, or only an empty one.

    A source that has reported more data gets some time to deliver it, since its servers may be busy.
    """
    end, late = driver.source_end(), time.monotonic() + PATIENCE
    idle = filled = 0
    while filled < LIMIT:
        driver.next_tuple()
        reached = end is not None and driver.reached(end)
        if not driver.active and end is not None and not reached and time.monotonic() < late:
            time.sleep(0.02)
        elif idle >= (DONE if reached else DRY):
            return
        elif not driver.active:
            idle += 1
        else:
            driver.commit()
            some = bool(batch(driver, driver.committed))
            idle, filled = (0, filled + 1) if some else (idle + 1, filled)
    raise CheckFailed(
        f"the source runs dry: expected that within {LIMIT} transactions that are not empty; likely cause: a batch "
        "does not begin where the metadata of the txid before end, so that the same records come again and again (or "
        "let make_spout hold less, or take larger batches)"
    )


def batch(driver: TopologyTestDriver, txid: int) -> Tuples:
    """Return the tuples that the spout emitted in the last attempt at `txid`, which is the committed one, if any."""
    return batch_of(driver, driver.attempts(txid)[-1])


def batch_of(driver: TopologyTestDriver, attempt: TransactionAttempt) -> Tuples:
    """Return the tuples that the spout emitted in `attempt`."""
    spout = driver.topology.spout.id
    emissions = (one for one in driver.emissions if one.attempt == attempt and one.component == spout)
    return Counter(text(one.stream, one.values) for one in emissions)


def text(stream: str, values: tuple[Any, ...]) -> str:
    """Format a tuple for messages, with its stream unless that is the default one."""
    return f"{values!r}" if stream == DEFAULT_STREAM else f"{stream}: {values!r}"
