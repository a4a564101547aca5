"""Rules for the values, commits and lease of a ledger."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

from txstorm.errors import ConflictError, HeldError, InputError, TxstormError
from txstorm.ledger.port import ABSENT, MAX_VALUE, Check, Delete, Entry, Ledger, Op, Put
from txstorm.testing.checks.rules import CheckFailed, expect, refused

Another = Callable[[], Ledger]
"""Function that opens another handle on the same ledger."""
Rule = Callable[[Another], None]


def new_ledger_is_empty(another: Another) -> None:
    """Check that a new ledger has no entries."""
    ledger = another()
    expect("get of an unknown path", None, ledger.get("epoch"))
    expect("children of an unknown path", [], ledger.children("coordinator/meta"))
    expect("scan of an unknown path", {}, ledger.scan("coordinator/meta"))
    ledger.commit([])
    expect("children of the root, after an empty commit", [], ledger.children(""))


def puts_are_seen_by_every_handle(another: Another) -> None:
    """Check that puts through one handle are visible to others and outlive it, and that empty values are preserved."""
    writer, reader = another(), another()
    writer.commit([Put("a/b", b"\x00\xff"), Put("a/c", b"")])
    writer.close()
    for handle in (reader, another()):
        expect("the value another handle put", Entry(b"\x00\xff", 0), handle.get("a/b"))
        expect("the empty value another handle put", Entry(b"", 0), handle.get("a/c"))


def versions_count_puts(another: Another) -> None:
    """Check that versions start at 0, increase by one with each put, and restart at 0 after a delete."""
    ledger = another()
    for version in range(3):
        ledger.commit([Put("a", b"same")])
        expect("after another put of the same value", Entry(b"same", version), ledger.get("a"))
    ledger.commit([Delete("a")])
    expect("after a delete", None, ledger.get("a"))
    ledger.commit([Put("a", b"x", ABSENT)])
    expect("after a put that follows a delete", Entry(b"x", 0), ledger.get("a"))


WRONG: tuple[Op, ...] = (
    Put("there", b"x", ABSENT),
    Put("there", b"x", 0),
    Put("there", b"x", 2),
    Put("gone", b"x", 0),
    Delete("there", 0),
    Delete("there", ABSENT),
    Delete("gone", 3),
    Check("there", ABSENT),
    Check("there", 0),
    Check("gone", 0),
)


def wrong_expectations_fail_the_whole_commit(another: Another) -> None:
    """Check that a commit has no effect at all if one entry does not have the expected version."""
    ledger = another()
    ledger.commit([Put("there", b"0"), Put("there", b"1"), Put("other", b"o")])
    others: list[Op] = [Put("new", b"n"), Delete("other")]
    for op in WRONG:
        for ops in ([op, *others], [*others, op]):
            refused(f"commit of {ops}", ConflictError, lambda ops=ops: ledger.commit(ops), f"'{op.path}'")  # type: ignore[misc]
            before = {"there": Entry(b"1", 1), "other": Entry(b"o", 0)}
            expect(f"entries after the refused commit of {ops}", before, ledger.scan(""))


def right_expectations_pass(another: Another) -> None:
    """Check that a commit whose expectations hold succeeds, and that a check operation changes nothing."""
    ledger = another()
    ledger.commit([Put("a", b"1", ABSENT), Put("b", b"1")])
    ledger.commit([Check("a", 0), Check("gone", ABSENT)])
    expect("after two checks", Entry(b"1", 0), ledger.get("a"))
    ledger.commit([Check("a", 0), Check("gone", ABSENT), Put("a", b"2", 0), Delete("b", 0), Delete("gone", ABSENT)])
    expect("after a commit with right expectations", {"a": Entry(b"2", 1)}, ledger.scan(""))


def operations_see_the_earlier_ones(another: Another) -> None:
    """Check that an operation sees the effects of earlier operations in the same commit."""
    ledger = another()
    ledger.commit([Put("a", b"1", ABSENT), Put("a", b"2", 0), Check("a", 1), Delete("a", 1), Put("a", b"3", ABSENT)])
    expect("after five operations on one path", Entry(b"3", 0), ledger.get("a"))
    refused(
        "two puts that expect the same version", ConflictError, lambda: ledger.commit([Put("a", b"4", 0)] * 2), "'a'"
    )
    expect("after that was refused", Entry(b"3", 0), ledger.get("a"))


def deleting_the_absent_is_no_error(another: Another) -> None:
    """Check that, without an expected version, deleting an absent entry or overwriting an existing one succeeds."""
    ledger = another()
    ledger.commit([Delete("a")])
    ledger.commit([Put("a", b"1")])
    ledger.commit([Put("a", b"2")])
    expect("after a delete of nothing and two puts", Entry(b"2", 1), ledger.get("a"))


def children_are_sorted(another: Another) -> None:
    """Check that children are the names directly below a path: first whole numbers in numeric order, then others."""
    ledger = another()
    paths = ["m/10", "m/9", "m/b", "m/a", "m/100/deep", "m/100/er", "m2/1", "m!/1", "m", "mm/x"]
    ledger.commit([Put(path, path.encode()) for path in paths])
    for path, names in {
        "m": ["9", "10", "100", "a", "b"],
        "m/100": ["deep", "er"],
        "m/9": [],
        "absent": [],
        "": ["m", "m!", "m2", "mm"],
    }.items():
        expect(f"children of {path!r}", names, ledger.children(path))


def scan_gives_entries_in_order(another: Another) -> None:
    """Check that a scan returns the entries directly below a path in the order of `children`."""
    ledger = another()
    ledger.commit([Put(path, path.encode()) for path in ("m/10", "m/9", "m/a", "m/100/deep", "m2/1", "m")])
    ledger.commit([Put("m/9", b"again")])
    entries = [("9", Entry(b"again", 1)), ("10", Entry(b"m/10", 0)), ("a", Entry(b"m/a", 0))]
    expect("scan of 'm'", entries, list(ledger.scan("m").items()))
    expect("scan of the root", {"m": Entry(b"m", 0)}, ledger.scan(""))
    ledger.commit([Delete(f"m/{name}") for name in ("9", "10", "a", "100/deep")])
    expect("scan of 'm' when all below is deleted", {}, ledger.scan("m"))
    expect("children of 'm' when all below is deleted", [], ledger.children("m"))


def names_keep_their_letters(another: Another) -> None:
    """Check that names are compared exactly, and that no character acts as a wildcard."""
    ledger = another()
    names = ["A", "a", "a%", "a_", "ä", "日本", "😀", "a b", "a'b"]
    ledger.commit([Put(f"t/{name}", name.encode()) for name in names])
    found = {name: entry.value.decode() for name, entry in ledger.scan("t").items()}
    expect("names and their values", {name: name for name in names}, found)
    expect("children of 't/a%'", [], ledger.children("t/a%"))


def malformed_paths_are_refused(another: Another) -> None:
    """Check that a malformed path raises `InputError` and that nothing is written."""
    ledger = another()
    for path in ("", "/", "/a", "a/", "a//b", "a/../b", ".", "a\0b", "a\udcffb"):
        uses: list[Callable[[str], object]] = [
            ledger.get,
            lambda p: ledger.commit([Put("ok", b""), Put(p, b"")]),
            lambda p: ledger.commit([Delete(p)]),
            *([ledger.children, ledger.scan] if path else []),
        ]
        for use in uses:
            refused(f"use of path {path!r}", InputError, lambda use=use, path=path: use(path))  # type: ignore[misc]
    expect("the well-formed path of refused commits", None, ledger.get("ok"))


def values_have_a_longest_length(another: Another) -> None:
    """Check that a value of `MAX_VALUE` bytes is accepted, and that a longer one is refused with its whole commit."""
    ledger = another()
    ledger.commit([Put("a", b"x" * MAX_VALUE)])
    expect("the longest value", Entry(b"x" * MAX_VALUE, 0), ledger.get("a"))
    too_long: list[Op] = [Delete("a"), Put("b", b"x" * (MAX_VALUE + 1))]
    refused("a value that is too long", InputError, lambda: ledger.commit(too_long))
    expect("children after that", ["a"], ledger.children(""))


def one_handle_has_the_lease(another: Another) -> None:
    """Check that one handle holds the lease until it releases it; the error that others get names the holder."""
    first, second = another(), another()
    expect("holder of a free lease", None, first.holder())
    first.acquire("one")
    for handle in (first, second):
        _expect_holder(handle, "one")
        refused("acquire while 'one' has the lease", HeldError, lambda handle=handle: handle.acquire("two"), "one")  # type: ignore[misc]
    second.release()
    _expect_holder(first, "one")
    first.release()
    first.release()
    expect("holder when it was given back", None, second.holder())
    second.acquire("two")
    _expect_holder(first, "two")


def closing_gives_the_lease_back(another: Another) -> None:
    """Check that closing a handle releases its own lease and no other."""
    first, second, third = another(), another(), another()
    first.acquire("one")
    second.close()
    _expect_holder(third, "one")
    first.close()
    third.acquire("three")
    _expect_holder(third, "three")


def the_holder_passes_the_check(another: Another) -> None:
    """Check that `check_lease` and commits succeed for the holder and for a handle that never acquired the lease."""
    first, second = another(), another()
    first.check_lease()
    first.acquire("one")
    for handle in (first, second):
        handle.check_lease()
        handle.commit([Put("a", b"")])
    first.release()
    second.acquire("two")
    # A released lease does not count as lost.
    first.check_lease()
    second.check_lease()


def waiting_for_the_lease(another: Another) -> None:
    """Check that `wait_free` returns True as soon as the lease is free, and False after its timeout."""
    first, second = another(), another()
    expect("whether a lease without a holder is free", True, second.wait_free(0))
    first.acquire("one")
    expect("whether a lease is free while 'one' has it", False, second.wait_free(0.05))
    late = threading.Timer(0.1, first.release)
    late.start()
    try:
        expect("whether a lease that was given back is free", True, second.wait_free(60))
    finally:
        late.join()
    second.acquire("two")


def closed_handles_are_refused(another: Another) -> None:
    """Check that a closed handle refuses every call except `close` and `release`."""
    ledger = another()
    ledger.close()
    ledger.close()
    ledger.release()
    uses: dict[str, Callable[[], object]] = {
        "get": lambda: ledger.get("a"),
        "children": lambda: ledger.children("a"),
        "scan": lambda: ledger.scan("a"),
        "commit": lambda: ledger.commit([Put("a", b"")]),
        "acquire": lambda: ledger.acquire("one"),
        "holder": ledger.holder,
        "check_lease": ledger.check_lease,
        "wait_free": lambda: ledger.wait_free(0),
    }
    for name, use in uses.items():
        refused(f"{name} on a closed handle", TxstormError, use)


def random_commits_agree_with_a_dictionary(another: Another) -> None:
    """Check that random commits have the same effect as on a dictionary, the reference model."""
    ledger = another()
    rng = random.Random(1)  # noqa: S311 - a schedule
    model: dict[str, Entry] = {}
    for step in range(150):
        ops = [_random_op(rng) for _ in range(rng.randint(1, 4))]
        wanted = _model(model, ops)
        try:
            ledger.commit(ops)
        except ConflictError:
            wanted = _refusal(wanted, model, f"step {step}, {ops} over {model}")
        else:
            expect(f"whether step {step}, {ops} over {model}, goes through", True, wanted is not None)
        model = wanted or {}
        expect(f"entries after step {step}, {ops}", model, ledger.scan("t"))


def _refusal(wanted: dict[str, Entry] | None, before: dict[str, Entry], what: str) -> dict[str, Entry]:
    expect(f"whether {what}, is refused", True, wanted is None)
    return before


def _random_op(rng: random.Random) -> Op:
    path, version = f"t/{rng.randint(0, 4)}", rng.choice([None, None, None, ABSENT, 0, 1])
    kind = rng.randrange(5)
    if kind == 0:
        return Check(path, ABSENT if version is None else version)
    return Delete(path, version) if kind == 1 else Put(path, rng.randbytes(3), version)


def _model(before: dict[str, Entry], ops: list[Op]) -> dict[str, Entry] | None:
    """Return the entries that `ops` should leave, starting from `before`; None if the commit must be refused."""
    after = dict(before)
    for op in ops:
        name = op.path.removeprefix("t/")
        version = after[name].version if name in after else ABSENT
        if op.expect not in (None, version):
            return None
        if isinstance(op, Delete):
            after.pop(name, None)
        if isinstance(op, Put):
            after[name] = Entry(op.value, version + 1)
    return after


def _expect_holder(ledger: Ledger, owner: str) -> None:
    holder = ledger.holder()
    if holder is None or owner not in holder:
        raise CheckFailed(f"holder: expected words with {owner!r} in them, got {holder!r}")


VALUE_RULES: dict[str, Rule] = {
    "a new ledger is empty": new_ledger_is_empty,
    "a put is seen by every handle and outlives its own": puts_are_seen_by_every_handle,
    "versions count puts and begin again after a delete": versions_count_puts,
    "a wrong expectation fails the whole commit": wrong_expectations_fail_the_whole_commit,
    "right expectations pass": right_expectations_pass,
    "operations see the earlier ones of their commit": operations_see_the_earlier_ones,
    "deleting the absent and creating the existing is no error": deleting_the_absent_is_no_error,
    "children are the names directly below, numbers by size": children_are_sorted,
    "scan gives the entries directly below in the same order": scan_gives_entries_in_order,
    "names keep their letters, and wildcards mean nothing": names_keep_their_letters,
    "malformed paths are refused": malformed_paths_are_refused,
    "a value has a longest length": values_have_a_longest_length,
    "one handle has the lease": one_handle_has_the_lease,
    "closing gives the lease back, and only one's own": closing_gives_the_lease_back,
    "the holder passes the check of its lease": the_holder_passes_the_check,
    "waiting for the lease ends when it is free": waiting_for_the_lease,
    "a closed handle is refused": closed_handles_are_refused,
    "random commits agree with a dictionary": random_commits_agree_with_a_dictionary,
}
