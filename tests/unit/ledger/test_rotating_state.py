"""Storm's rotating state: items 23 to 30 of the conformance list, and txstorm's additions."""

from typing import Any

import pytest

from txstorm import RotatingState
from txstorm.errors import LedgerCorrupt, MetadataError, OrderError
from txstorm.ledger.memory import MemoryLedger
from txstorm.ledger.port import Ledger, Put

PATH = "coordinator/meta"


class Variable:
    """An initializer that records its calls, and whose value the test can change, as in Storm's test."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self.calls: list[tuple[int, Any]] = []

    def __call__(self, txid: int, last: Any) -> Any:
        self.calls.append((txid, last))
        return self.value


def strict(ledger: Ledger) -> RotatingState:
    return RotatingState(ledger, PATH, strict=True)


def loose(ledger: Ledger) -> RotatingState:
    return RotatingState(ledger, PATH, strict=False)


def test_items_23_to_26_strict_order(ledger: Ledger) -> None:
    """Items 23 to 26 (T41): a strict rotating state calls the initializer once per txid, in order without gaps."""
    init, state = Variable(10), strict(ledger)
    assert state.get_state(1, init) == 10
    assert state.get_state(2, init) == 10
    init.value = 20
    assert state.get_state(3, init) == 20
    assert state.get_state(1, init) == 10
    with pytest.raises(OrderError, match=r"coordinator/meta/5: expected txid 4"):
        state.get_state(5, init)
    assert state.get_state(4, init) == 20
    assert ledger.children(PATH) == ["1", "2", "3", "4"]
    state.cleanup_before(3)
    assert ledger.children(PATH) == ["3", "4"]
    assert state.get_state_or_create(5, init) is None
    assert state.get_state_or_create(5, init) == 20
    assert state.get_state_or_create(6, init) is None
    state.cleanup_before(6)
    assert ledger.children(PATH) == ["6"]
    assert init.calls == [(1, None), (2, 10), (3, 10), (4, 20), (5, 20), (6, 20)], "once for each txid"


def test_item_27_not_strict(ledger: Ledger) -> None:
    """Item 27 (T41): a non-strict rotating state allows gaps, and stores None for a txid below the newest."""
    init, state = Variable(10), loose(ledger)
    steps = [(20, 10, 20), (20, 20, 20), (9, 12, None), (9, 19, None), (9, 12, None), (20, 21, 20)]
    for value, txid, expected in steps:
        init.value = value
        assert state.get_state(txid, init) == expected
    assert 12 in state
    assert init.calls == [(10, None), (20, 20), (21, 20)]
    assert loose(ledger).txids() == [10, 12, 19, 20, 21]


def test_item_28_the_metadata_of_the_committed_txid_is_kept(ledger: Ledger) -> None:
    """Items 28 and 29: clean-up keeps the metadata of the last committed txid, from which the next batch is planned."""
    state = strict(ledger)
    for txid in (1, 2, 3, 4):
        state.get_state(txid, Variable(txid * 10))
    state.cleanup_before(2)
    assert state.txids() == [2, 3, 4]
    assert (state.previous(3), state.previous(2), state.last()) == (20, None, 40)


def test_item_30_removing_a_missing_txid_is_not_an_error(ledger: Ledger) -> None:
    state, other = loose(ledger), loose(ledger)
    state.override(3, "a")
    other.remove(3)
    state.remove(4)
    state.override(5, "b")
    loose(ledger).remove(5)
    state.remove(5)
    state.remove(5)
    state.cleanup_before(100)
    state.cleanup_before(100)
    assert ledger.children(PATH) == []


def test_strict_rejects_a_start_above_one_gaps_and_earlier_txids(ledger: Ledger) -> None:
    state, init = strict(ledger), Variable(0)
    for txid in (2, 0, -1):
        with pytest.raises(OrderError, match="expected txid 1, which follows nothing"):
            state.get_state(txid, init)
    state.get_state(1, Variable(0))
    state.get_state(2, Variable(0))
    state.remove(1)
    with pytest.raises(OrderError, match=r"meta/1: expected txid 3"):
        state.get_state(1, init)
    assert init.calls == []
    assert ledger.children(PATH) == ["2"]


def test_a_new_object_continues_from_the_stored_state_and_gets_the_same_values(ledger: Ledger) -> None:
    assert strict(ledger).last() is None
    assert strict(ledger).get(0) is None
    first = strict(ledger).get_state(1, Variable({"a": (1, 2)}))
    again, init = strict(ledger), Variable("next")
    assert first == again.get(1) == again.last() == {"a": [1, 2]}
    assert again.get_state(1, init) == {"a": [1, 2]}
    assert again.get_state(2, init) == "next"
    assert init.calls == [(2, {"a": [1, 2]})]


def test_a_caller_that_mutates_a_value_changes_only_its_copy(ledger: Ledger) -> None:
    state, mine = strict(ledger), {"parts": [1]}
    state.get_state(1, Variable(mine))["parts"].append(2)
    mine["parts"].append(3)
    state.last()["parts"].append(4)
    assert state.get(1) == {"parts": [1]}


def test_a_stored_null_is_a_value(ledger: Ledger) -> None:
    state, init = strict(ledger), Variable(None)
    assert state.get_state(1, init) is None
    assert 1 in state
    assert 2 not in state
    assert strict(ledger).get_state(1, init) is None
    assert len(init.calls) == 1


def test_an_initialiser_that_raises_leaves_no_trace(ledger: Ledger) -> None:
    state = strict(ledger)

    def failing(txid: int, last: Any) -> Any:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        state.get_state(1, failing)
    assert 1 not in state
    assert state.get_state(1, Variable(7)) == 7


def test_values_that_are_not_json_are_named_and_not_stored(ledger: Ledger) -> None:
    state = strict(ledger)
    with pytest.raises(MetadataError, match=r"coordinator/meta/1: .*\$\.when\[0\]: set"):
        state.get_state(1, Variable({"when": [{1}]}))
    with pytest.raises(MetadataError, match="coordinator/meta/2"):
        state.override(2, float("nan"))
    assert state.txids() == []
    assert ledger.children("") == []


@pytest.mark.parametrize(
    ("name", "value"),
    [*((name, b'{"format":1,"value":1}') for name in ("x", "01", "-1", "1.5", "²")), ("3", b"junk")],
)
def test_a_name_that_is_no_txid_and_damaged_values_are_refused_by_path(name: str, value: bytes) -> None:
    ledger = MemoryLedger()
    ledger.commit([Put(f"{PATH}/{name}", value)])
    with pytest.raises(LedgerCorrupt, match=f"{PATH}/{name}"):
        strict(ledger)


def test_states_of_different_paths_are_separate(ledger: Ledger) -> None:
    one, two = RotatingState(ledger, "user/0", False), RotatingState(ledger, "user/01", False)
    one.override(5, "a")
    two.override(6, "b")
    assert RotatingState(ledger, "user/0", False).txids() == [5]
    assert ledger.children("user") == ["0", "01"]
