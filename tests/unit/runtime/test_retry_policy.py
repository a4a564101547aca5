"""Retry policy: records diverted to dead letters after repeated failures, and failure counts that survive a restart."""

import json
from typing import Any

import pytest

from txstorm.engine.port import SOURCE, ErrorRow
from txstorm.runtime.failures import LOST_RETRIES, Failure, RetryPolicy
from txstorm.topology.settings import Settings


def row(kind: str) -> ErrorRow:
    return ErrorRow("split", 1, kind, "ValueError", "why", "jobs/a.py:3 in execute", "a long trace")


class Desk:
    """Test harness: a retry policy that stores failures as JSON, as in a ledger; `restart` recreates it from them."""

    def __init__(self, **settings: Any) -> None:
        self.settings = Settings.parse({"on_error": "dead_letter", "retry_backoff": 0.1, **settings})
        self.ledger: dict[int, str] = {}
        self.pins: dict[int, Any] = {}
        self.policy = self.restart()

    def restart(self) -> RetryPolicy:
        known = {txid: Failure.from_json(json.loads(text)) for txid, text in self.ledger.items()}
        self.policy = RetryPolicy(self.settings, self.write, known, self.pins.get)
        return self.policy

    def write(self, txid: int, failure: Failure) -> None:
        self.ledger[txid] = json.dumps(failure.to_json())

    def delays(self, *kinds: str) -> list[float | None]:
        """Fail txid 3 repeatedly, with a restart before each; return the delay after each (None: give up)."""
        return [self.restart().judge(3, row(kind)).delay for kind in kinds]

    def fail(self, *kinds: str) -> float | None:
        """Fail txid 3 repeatedly; return the last delay."""
        return self.delays(*kinds)[-1]


def test_back_off_starts_at_zero_and_grows_until_records_are_diverted_and_errors_have_no_traceback() -> None:
    desk = Desk(retry_backoff_max=1)
    assert desk.delays(*["failed"] * 8) == [0, 0.1, 0.2, 0.4, 0.8, 1, 1, 1]
    failure = desk.policy.failure(3)
    assert (failure.count, failure.tries, [*desk.ledger]) == (8, {"failed": 8}, [3])
    assert failure.cause == "split[1] raised ValueError at jobs/a.py:3 in execute: why"
    assert desk.policy.judge(5, row("failed")).delay == 0
    desk = Desk()
    desk.fail("lost", "lost", "lost")
    error = desk.restart().failure(3).error
    assert (error.kind, error.message, error.traceback) == ("lost", "why", "")
    desk = Desk(on_error="retry(3), dead_letter")
    assert [desk.fail("other") for _ in range(5)] == [0, 0.1, 0.2, 0, 0]
    assert desk.policy.failure(3).count == 5


@pytest.mark.parametrize(
    ("kind", "settings", "replays"),
    [
        ("other", {}, 0),
        ("other", {"on_error": "retry(3)"}, 3),
        ("lost", {}, LOST_RETRIES),
        ("lost", {"on_error": "retry(7)"}, 7),
        ("failed", {"max_retries": 2}, 2),
        ("reported", {"max_retries": 0}, 0),
    ],
)
def test_limit_on_replays_of_a_batch(kind: str, settings: dict, replays: int) -> None:
    """The count of failures survives restarts, and ends with the commit."""
    desk = Desk(**{"on_error": "fail_topology", **settings})
    assert desk.delays(*[kind] * (replays + 1)).index(None) == replays
    desk.policy.judge(9, row(kind))
    assert desk.policy.forget(5) == [3]
    assert (desk.policy.judge(3, row(kind)).count, desk.policy.judge(9, row(kind)).count) == (1, 2)


@pytest.mark.parametrize(
    ("settings", "kinds", "divert"),
    [
        ({}, ["other"], ("other",)),
        ({"on_error": "retry(2), dead_letter"}, ["other"] * 2, ()),
        ({"on_error": "retry(2), dead_letter"}, ["other"] * 3, ("other",)),
        ({}, ["failed"] * 30, ()),
        ({"max_retries": 2}, ["failed", "reported"], ()),
        ({"max_retries": 2}, ["failed", "reported", "failed"], ("failed",)),
        ({"max_retries": 1}, ["failed", "other", "failed"], ("other",)),
        ({"max_retries": 0}, ["other", "failed"], ("other", "failed")),
        ({}, ["lost"] * LOST_RETRIES, ()),
        ({}, ["lost"] * (LOST_RETRIES + 1), (SOURCE,)),
        ({}, ["other", "other"], ("other", SOURCE)),
        ({}, ["other", "lost"], ("other",)),
    ],
)
def test_records_diverted_after_failures(settings: dict, kinds: list[str], divert: tuple[str, ...]) -> None:
    desk = Desk(**settings)
    assert desk.fail(*kinds) is not None
    assert desk.policy.divert(3) == desk.restart().divert(3) == divert


def test_what_is_diverted_keeps_its_extent_and_the_topology_ends_if_nothing_more_can_be() -> None:
    desk = Desk()
    assert desk.fail("other", "other") == 0
    assert desk.fail("other") is None
    desk = Desk()
    desk.fail("other")
    desk.settings = Settings.parse({})
    assert desk.restart().divert(3) == ()
    assert desk.fail("other") is None
    desk = Desk(on_error="retry(1), dead_letter")
    assert desk.policy.judge(3, row("other"), divertible=False).delay == 0
    assert desk.policy.judge(3, row("other"), divertible=False).delay is None
    desk = Desk()
    desk.pins[3] = ({"meta": [4, 6]}, {"meta": [2, 4]})
    desk.fail("lost", "lost", "lost")
    policy = desk.restart()
    assert policy.pinned(3, {"meta": [2, 4]}) == {"meta": [4, 6]}
    assert policy.divert(3) == (SOURCE,)
    assert policy.pinned(4, {"meta": [4, 6]}) is None
    # Txid 2 now ends at another position, so txid 3 is a different batch: the failures no longer apply to it.
    assert policy.pinned(3, {"meta": [2, 5]}) is None
    assert policy.divert(3) == ()
