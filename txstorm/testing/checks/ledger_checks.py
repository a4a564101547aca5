"""What every ledger does, as rules that can be tried on an implementation of one's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from txstorm.api.names import near
from txstorm.errors import InputError
from txstorm.ledger.port import Delete, Ledger
from txstorm.testing.checks.ledger_rules import VALUE_RULES, Another, Rule
from txstorm.testing.checks.ledgers import RACE_RULES
from txstorm.testing.checks.rules import checking

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
