"""What every ledger does; a new implementation joins in conftest.py."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import pytest

from txstorm.errors import ConflictError, HeldError, InputError, TxstormError
from txstorm.ledger.store import ABSENT, MAX_VALUE, Check, Delete, Entry, Ledger, Op, Put

Another = Callable[[], Ledger]


def test_a_new_ledger_is_empty(ledger: Ledger) -> None:
    assert ledger.get("epoch") is None
    assert ledger.children("") == ledger.children("coordinator/meta") == []
    assert ledger.scan("coordinator/meta") == {}


def test_a_put_is_seen_by_every_handle_and_outlives_its_own(another: Another) -> None:
    writer, reader = another(), another()
    writer.commit([Put("a/b", b"\x00\xff")])
    writer.close()
    assert reader.get("a/b") == another().get("a/b") == Entry(b"\x00\xff", 0)


def test_an_empty_value_is_a_value(ledger: Ledger) -> None:
    ledger.commit([Put("a", b"")])
    assert ledger.get("a") == Entry(b"", 0)


def test_versions_count_puts_and_begin_again_after_a_delete(ledger: Ledger) -> None:
    for expected in range(3):
        ledger.commit([Put("a", b"same")])
        assert ledger.get("a") == Entry(b"same", expected)
    ledger.commit([Delete("a")])
    assert ledger.get("a") is None
    ledger.commit([Put("a", b"x", ABSENT)])
    assert ledger.get("a") == Entry(b"x", 0)


@pytest.mark.parametrize(
    ("op", "wording"),
    [
        (Put("there", b"x", ABSENT), r"'there'.*expected no entry, got version 1"),
        (Put("there", b"x", 0), r"'there'.*expected version 0, got version 1"),
        (Put("there", b"x", 2), r"'there'.*expected version 2, got version 1"),
        (Put("gone", b"x", 0), r"'gone'.*expected version 0, got no entry"),
        (Delete("there", 0), r"'there'.*expected version 0, got version 1"),
        (Delete("there", ABSENT), r"'there'.*expected no entry, got version 1"),
        (Delete("gone", 3), r"'gone'.*expected version 3, got no entry"),
        (Check("there", ABSENT), r"'there'.*expected no entry, got version 1"),
        (Check("there", 0), r"'there'.*expected version 0, got version 1"),
        (Check("gone", 0), r"'gone'.*expected version 0, got no entry"),
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_a_wrong_expectation_fails_the_whole_commit(ledger: Ledger, op: Op, wording: str, first: bool) -> None:
    ledger.commit([Put("there", b"0"), Put("there", b"1"), Put("other", b"o")])
    others: list[Op] = [Put("new", b"n"), Delete("other")]
    with pytest.raises(ConflictError, match=wording):
        ledger.commit([op, *others] if first else [*others, op])
    assert ledger.scan("") == {"there": Entry(b"1", 1), "other": Entry(b"o", 0)}


def test_right_expectations_pass(ledger: Ledger) -> None:
    ledger.commit([Put("a", b"1", ABSENT), Put("b", b"1")])
    ledger.commit([Check("a", 0), Check("gone", ABSENT), Put("a", b"2", 0), Delete("b", 0), Delete("gone", ABSENT)])
    assert ledger.scan("") == {"a": Entry(b"2", 1)}


def test_a_check_changes_nothing(ledger: Ledger) -> None:
    ledger.commit([Put("a", b"1")])
    ledger.commit([Check("a", 0), Check("gone", ABSENT)])
    assert ledger.scan("") == {"a": Entry(b"1", 0)}


def test_operations_see_the_earlier_ones_of_their_commit(ledger: Ledger) -> None:
    ledger.commit([Put("a", b"1", ABSENT), Put("a", b"2", 0), Check("a", 1), Delete("a", 1), Put("a", b"3", ABSENT)])
    assert ledger.get("a") == Entry(b"3", 0)
    with pytest.raises(ConflictError):
        ledger.commit([Put("a", b"4", 0), Put("a", b"5", 0)])
    assert ledger.get("a") == Entry(b"3", 0)


def test_deleting_the_absent_and_creating_the_existing_is_no_error(ledger: Ledger) -> None:
    # storm.md item 30
    ledger.commit([Delete("a")])
    ledger.commit([Put("a", b"1")])
    ledger.commit([Put("a", b"2")])
    assert ledger.get("a") == Entry(b"2", 1)


def test_an_empty_commit_is_nothing(ledger: Ledger) -> None:
    ledger.commit([])
    assert ledger.children("") == []


def test_children_are_the_names_directly_below_numbers_by_size(ledger: Ledger) -> None:
    paths = ["m/10", "m/9", "m/b", "m/a", "m/100/deep", "m/100/er", "m2/1", "m!/1", "m", "mm/x"]
    ledger.commit([Put(path, path.encode()) for path in paths])
    assert ledger.children("m") == ["9", "10", "100", "a", "b"]
    assert ledger.children("m/100") == ["deep", "er"]
    assert ledger.children("m/9") == ledger.children("absent") == []
    assert ledger.children("") == ["m", "m!", "m2", "mm"]


def test_scan_gives_the_entries_directly_below_in_the_same_order(ledger: Ledger) -> None:
    ledger.commit([Put(path, path.encode()) for path in ("m/10", "m/9", "m/a", "m/100/deep", "m2/1", "m")])
    ledger.commit([Put("m/9", b"again")])
    assert list(ledger.scan("m").items()) == [
        ("9", Entry(b"again", 1)),
        ("10", Entry(b"m/10", 0)),
        ("a", Entry(b"m/a", 0)),
    ]
    assert ledger.scan("") == {"m": Entry(b"m", 0)}
    ledger.commit([Delete("m/9"), Delete("m/10"), Delete("m/a"), Delete("m/100/deep")])
    assert ledger.scan("m") == {}
    assert ledger.children("m") == []


def test_names_keep_their_case_their_letters_and_wildcards_mean_nothing(ledger: Ledger) -> None:
    names = ["A", "a", "a%", "a_", "ä", "日本", "😀", "a b", "a'b"]
    ledger.commit([Put(f"t/{name}", name.encode()) for name in names])
    assert {name: entry.value.decode() for name, entry in ledger.scan("t").items()} == {name: name for name in names}
    assert ledger.children("t/a%") == []


@pytest.mark.parametrize("path", ["", "/", "/a", "a/", "a//b", "a/../b", ".", "a\0b", "a\udcffb"])
def test_malformed_paths_are_refused_by_name(ledger: Ledger, path: str) -> None:
    for use in (
        ledger.get,
        lambda p: ledger.commit([Put("ok", b""), Put(p, b"")]),
        lambda p: ledger.commit([Delete(p)]),
    ):
        with pytest.raises(InputError, match="ledger path"):
            use(path)
    if path:
        for read in (ledger.children, ledger.scan):
            with pytest.raises(InputError, match="ledger path"):
                read(path)
    assert ledger.get("ok") is None


def test_a_value_has_a_longest_length(ledger: Ledger) -> None:
    ledger.commit([Put("a", b"x" * MAX_VALUE)])
    with pytest.raises(InputError, match=rf"'b'.*at most {MAX_VALUE} bytes, got {MAX_VALUE + 1}"):
        ledger.commit([Delete("a"), Put("b", b"x" * (MAX_VALUE + 1))])
    assert ledger.children("") == ["a"]


def test_one_handle_has_the_lease(another: Another) -> None:
    first, second = another(), another()
    assert first.holder() is None
    first.acquire("one")
    assert "'one' (pid " in str(second.holder())
    assert "since 2026-01-02T03:04:05+00:00" in str(first.holder())
    for handle in (first, second):
        with pytest.raises(HeldError, match=r"'one' \(pid \d+ on .+, since 2026-01-02T03:04:05\+00:00\)"):
            handle.acquire("two")
    second.release()
    assert first.holder() is not None, "only the handle that has the lease gives it back"
    first.release()
    first.release()
    assert second.holder() is None
    second.acquire("two")
    assert "'two'" in str(first.holder())


def test_closing_gives_the_lease_back_and_only_ones_own(another: Another) -> None:
    first, second, third = another(), another(), another()
    first.acquire("one")
    second.close()
    assert "'one'" in str(third.holder())
    first.close()
    third.acquire("three")


def test_a_closed_handle_is_refused(ledger: Ledger) -> None:
    ledger.close()
    ledger.close()
    ledger.release()
    for use in (
        lambda: ledger.get("a"),
        lambda: ledger.children("a"),
        lambda: ledger.scan("a"),
        lambda: ledger.commit([Put("a", b"")]),
        lambda: ledger.acquire("one"),
        ledger.holder,
    ):
        with pytest.raises(TxstormError, match="closed"):
            use()


def test_of_many_threads_one_wins_each_version(another: Another) -> None:
    handles, won, rounds = [another(), another()], [], 20

    def compete(me: int) -> None:
        for version in range(ABSENT, rounds - 1):
            try:
                handles[me % 2].commit([Put("seat", str(me).encode(), version), Put(f"won/{version}/{me}", b"")])
                won.append(version)
            except ConflictError:
                pass

    threads = [threading.Thread(target=compete, args=(me,)) for me in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # A thread may be late for every version; none is won twice, and what was won is stored.
    assert len(set(won)) == len(won) == handles[0].get("seat").version + 1  # type: ignore[union-attr]
    assert all(len(handles[0].children(f"won/{version}")) == 1 for version in won)


def test_readers_see_whole_commits_only(another: Another) -> None:
    writer, reader, done = another(), another(), threading.Event()
    writer.commit([Put("pair/a", b"0"), Put("pair/b", b"0")])
    torn = []

    def watch() -> None:
        while not done.is_set():
            pair = reader.scan("pair")
            if pair["a"] != pair["b"]:
                torn.append(pair)

    thread = threading.Thread(target=watch)
    thread.start()
    for i in range(50):
        writer.commit([Put("pair/a", str(i).encode()), Put("pair/b", str(i).encode())])
    done.set()
    thread.join()
    assert torn == []


def test_of_many_threads_one_gets_the_lease(another: Another) -> None:
    handles = [another() for _ in range(8)]
    outcomes: list[str] = []
    start = threading.Barrier(len(handles))

    def compete(handle: Ledger) -> None:
        start.wait()
        try:
            handle.acquire("me")
            outcomes.append("held")
        except HeldError:
            outcomes.append("refused")

    threads = [threading.Thread(target=compete, args=(handle,)) for handle in handles]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["held"] + ["refused"] * 7


@pytest.mark.parametrize("seed", range(5))
def test_random_commits_agree_with_a_dictionary(ledger: Ledger, seed: int) -> None:
    rng = random.Random(seed)
    model: dict[str, Entry] = {}
    for step in range(60):
        ops = [_random_op(rng) for _ in range(rng.randint(1, 4))]
        wanted = _model(model, ops)
        try:
            ledger.commit(ops)
            assert wanted is not None, f"seed {seed}, step {step}: {ops} went through"
            model = wanted
        except ConflictError:
            assert wanted is None, f"seed {seed}, step {step}: {ops} refused over {model}"
        assert ledger.scan("t") == model, f"seed {seed}, step {step}"


def _random_op(rng: random.Random) -> Op:
    path, expect = f"t/{rng.randint(0, 4)}", rng.choice([None, None, None, ABSENT, 0, 1])
    kind = rng.randrange(5)
    if kind == 0:
        return Check(path, ABSENT if expect is None else expect)
    return Delete(path, expect) if kind == 1 else Put(path, rng.randbytes(3), expect)


def _model(before: dict[str, Entry], ops: list[Op]) -> dict[str, Entry] | None:
    after = dict(before)
    for op in ops:
        name = op.path.removeprefix("t/")
        version = after[name].version if name in after else -1
        if op.expect not in (None, version):
            return None
        if isinstance(op, Delete):
            after.pop(name, None)
        if isinstance(op, Put):
            after[name] = Entry(op.value, version + 1)
    return after
