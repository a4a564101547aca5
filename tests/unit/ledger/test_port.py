"""The rules of `check_ledger`, tested with every ledger; new implementations are registered in conftest.py."""

from collections.abc import Callable

import pytest

from txstorm.errors import ConflictError, FencedError, HeldError, InputError
from txstorm.ledger.port import ABSENT, MAX_VALUE, Check, Delete, Ledger, Op, Put
from txstorm.testing import check_ledger
from txstorm.testing.checks.ledgers import LEDGER_RULES

Another = Callable[[], Ledger]


@pytest.mark.parametrize("rule", LEDGER_RULES)
def test_rule(rule: str, another: Another) -> None:
    check_ledger(another, rules=[rule])


@pytest.mark.parametrize(
    ("op", "wording"),
    [
        (Put("there", b"x", ABSENT), r"'there'.*expected no entry, got version 1"),
        (Delete("gone", 3), r"'gone'.*expected version 3, got no entry"),
        (Check("there", 0), r"'there'.*expected version 0, got version 1"),
    ],
)
def test_messages_for_wrong_expectations(ledger: Ledger, op: Op, wording: str) -> None:
    ledger.commit([Put("there", b"0"), Put("there", b"1")])
    with pytest.raises(ConflictError, match=wording):
        ledger.commit([op])


def test_messages_for_malformed_paths_and_long_values_and_about_the_lease_holder(ledger, another) -> None:
    with pytest.raises(InputError, match="ledger path 'a//b'"):
        ledger.get("a//b")
    with pytest.raises(InputError, match=rf"'b'.*at most {MAX_VALUE} bytes, got {MAX_VALUE + 1}"):
        ledger.commit([Put("b", b"x" * (MAX_VALUE + 1))])
    first, second = another(), another()
    first.acquire("one")
    assert "'one' (pid " in str(second.holder())
    assert "since 2026-01-02T03:04:05+00:00" in str(first.holder())
    with pytest.raises(HeldError, match=r"'one' \(pid \d+ on .+, since 2026-01-02T03:04:05\+00:00\)"):
        second.acquire("two")


@pytest.mark.integration
def test_a_copy_of_a_handle_in_a_forked_child_is_void_and_leaves_the_parents_alone(ledger: Ledger, in_child) -> None:
    ledger.acquire("parent")
    ledger.commit([Put("a", b"1")])
    uses = [ledger.check_lease, ledger.holder, lambda: ledger.commit([Put("a", b"2")]), lambda: ledger.acquire("child")]
    reads = [lambda: ledger.get("a"), lambda: ledger.children(""), lambda: ledger.scan(""), lambda: ledger.wait_free(0)]

    def child() -> None:
        for use in [*uses, *reads]:
            with pytest.raises(FencedError, match="expected a handle of this process, got a copy of that of process"):
                use()
        ledger.release()
        ledger.close()

    assert in_child(child) == 0
    ledger.check_lease()
    ledger.commit([Put("a", b"2", 0)])
    assert "'parent'" in str(ledger.holder())
