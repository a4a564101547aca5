"""The rules of a ledger that several threads use at once.

What every ledger does, as rules that can be tried on an implementation of one's own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from txstorm.api.names import near
from txstorm.errors import ConflictError, HeldError, InputError
from txstorm.ledger.port import ABSENT, Delete, Ledger, Put
from txstorm.testing.checks.ledger_rules import VALUE_RULES, Another, Rule
from txstorm.testing.checks.rules import at_once, checking, expect

ROUNDS = 20
THREADS = 4


def one_wins_each_version(another: Another) -> None:
    """Of those who put with the same expectation one wins; a version is never won twice."""
    handles, won = [another(), another()], list[int]()

    def compete(me: int) -> None:
        for version in range(ABSENT, ROUNDS - 1):
            try:
                handles[me % 2].commit([Put("seat", str(me).encode(), version), Put(f"won/{version}/{me}", b"")])
            except ConflictError:
                continue
            won.append(version)

    at_once(lambda me=me: compete(me) for me in range(THREADS))  # type: ignore[misc]
    # A thread may be late for every version; none is won twice, and what was won is stored.
    seat = handles[0].get("seat")
    expect("versions that were won", sorted(set(won)), sorted(won))
    expect("the last version that is stored", len(won) - 1, None if seat is None else seat.version)
    winners = {version: len(handles[0].children(f"won/{version}")) for version in won}
    expect("winners that are stored per version", dict.fromkeys(won, 1), winners)


def readers_see_whole_commits(another: Another) -> None:
    """A scan beside commits never sees one half of a commit."""
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

    at_once([watch, write])
    expect("pairs of which a scan saw one half", [], torn)


def one_gets_the_lease(another: Another) -> None:
    """Of many who take the lease at once one gets it."""
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

    at_once(lambda handle=handle: compete(handle) for handle in handles)  # type: ignore[misc]
    expect("outcomes", ["held", *["refused"] * (len(handles) - 1)], sorted(outcomes))


RACE_RULES: dict[str, Rule] = {
    "of many threads one wins each version": one_wins_each_version,
    "readers see whole commits only": readers_see_whole_commits,
    "of many threads one gets the lease": one_gets_the_lease,
}


LEDGER_RULES: dict[str, Rule] = {**VALUE_RULES, **RACE_RULES}
"""The rules, each under the sentence it is named by."""


def check_ledger(make_ledger: Callable[[], Ledger], *, rules: Iterable[str] | None = None) -> None:
    """Raise `CheckFailed` unless the ledger keeps the promises of `txstorm.ledger.port.Ledger`.

    Entries are removed between the rules: give it a ledger made for this. What no call can show (that a commit
    survives a power cut, that the lease ends with the process) has to be tested otherwise.

    Args:
        make_ledger: opens one more handle, each time, on one and the same ledger; nobody holds its lease.
        rules: some of `LEDGER_RULES` only.

    Raises:
        CheckFailed: a rule is broken; its name is in the message.
        InputError: there is no such rule.
    """
    for name in LEDGER_RULES if rules is None else rules:
        if name not in LEDGER_RULES:
            msg = f"rule {name!r}: expected one of LEDGER_RULES{near(name, list(LEDGER_RULES))}"
            raise InputError(msg)
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
