"""Checks for a user-defined ledger: rules for values, commits and the lease, and for concurrent use."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from txstorm.api.names import near
from txstorm.errors import ConflictError, HeldError, InputError
from txstorm.ledger.port import ABSENT, Delete, Ledger, Put
from txstorm.testing.checks.ledger_rules import VALUE_RULES, Another, Rule
from txstorm.testing.checks.rules import checking, expect, in_parallel

ROUNDS = 20
THREADS = 4


def one_wins_each_version(another: Another) -> None:
    """Check that exactly one of several concurrent puts that expect the same version succeeds."""
    handles, won = [another(), another()], list[int]()

    def compete(me: int) -> None:
        for version in range(ABSENT, ROUNDS - 1):
            try:
                handles[me % 2].commit([Put("seat", str(me).encode(), version), Put(f"won/{version}/{me}", b"")])
            except ConflictError:
                continue
            won.append(version)

    in_parallel(lambda me=me: compete(me) for me in range(THREADS))  # type: ignore[misc]
    # A thread may lose every version, but no version is won twice, and every winner is stored.
    seat = handles[0].get("seat")
    expect("versions that were won", sorted(set(won)), sorted(won))
    expect("the last version that is stored", len(won) - 1, None if seat is None else seat.version)
    winners = {version: len(handles[0].children(f"won/{version}")) for version in won}
    expect("winners that are stored per version", dict.fromkeys(won, 1), winners)


def readers_see_whole_commits(another: Another) -> None:
    """Check that a scan never sees only part of a concurrent commit."""
    writer, reader, done = another(), another(), threading.Event()
    writer.commit([Put("pair/a", b"0"), Put("pair/b", b"0")])
    torn: list[object] = []

    def watch() -> None:
        while not done.is_set():
            pair = reader.scan("pair")
            if pair["a"] != pair["b"]:
                torn.append(pair)

    def write() -> None:
        try:
            for number in range(50):
                writer.commit([Put("pair/a", str(number).encode()), Put("pair/b", str(number).encode())])
        finally:
            done.set()

    in_parallel([watch, write])
    expect("pairs of which a scan saw one half", [], torn)


def one_gets_the_lease(another: Another) -> None:
    """Check that exactly one of many concurrent calls acquires the lease."""
    handles = [another() for _ in range(2 * THREADS)]
    outcomes: list[str] = []
    start = threading.Barrier(len(handles))

    def compete(handle: Ledger) -> None:
        start.wait()
        try:
            handle.acquire("me")
        except HeldError:
            outcomes.append("refused")
        else:
            outcomes.append("held")

    in_parallel(lambda handle=handle: compete(handle) for handle in handles)  # type: ignore[misc]
    expect("outcomes", ["held", *["refused"] * (len(handles) - 1)], sorted(outcomes))


RACE_RULES: dict[str, Rule] = {
    "of many threads one wins each version": one_wins_each_version,
    "readers see whole commits only": readers_see_whole_commits,
    "of many threads one gets the lease": one_gets_the_lease,
}


LEDGER_RULES: dict[str, Rule] = {**VALUE_RULES, **RACE_RULES}
"""All rules by name."""


def check_ledger(make_ledger: Callable[[], Ledger], *, rules: Iterable[str] | None = None) -> None:
    """Raise `CheckFailed` unless the ledger satisfies `txstorm.ledger.port.Ledger`.

    All entries are deleted before each rule, so use a ledger created for the check. Properties that calls cannot reveal
    (a commit survives a power failure, the lease ends with the process) need other tests.

    Args:
        make_ledger: opens a new handle on the same ledger, whose lease must be free.
        rules: names from `LEDGER_RULES`; None: all.

    Raises:
        CheckFailed: a rule is broken; its name is in the message.
        InputError: a rule does not exist.
    """
    for name in LEDGER_RULES if rules is None else rules:
        if name not in LEDGER_RULES:
            raise InputError(f"rule {name!r}: expected one of LEDGER_RULES{near(name, list(LEDGER_RULES))}")
        with checking(f"ledger: {name}"):
            _try(make_ledger, LEDGER_RULES[name])


def _try(make_ledger: Another, rule: Rule) -> None:
    opened: list[Ledger] = []

    def another() -> Ledger:
        opened.append(make_ledger())
        return opened[-1]

    try:
        _empty(another())
        rule(another)
    finally:
        for handle in opened:
            handle.close()


def _empty(ledger: Ledger) -> None:
    paths = list(_paths(ledger, ""))
    ledger.commit([Delete(path) for path in paths])


def _paths(ledger: Ledger, above: str) -> Iterable[str]:
    for name in ledger.children(above):
        path = f"{above}/{name}" if above else name
        yield from _paths(ledger, path)
        yield path
