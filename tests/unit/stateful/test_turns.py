"""Turns of stateful bolts: what a discarded attempt may still do, who is rolled back, and states that do not fit."""

from types import SimpleNamespace

import pytest

from txstorm.api.external import ManagedState
from txstorm.errors import StateError, TableCorrupt
from txstorm.stateful.target import StatefulTarget
from txstorm.stateful.turns import TaskTurn
from txstorm.storage.tables.identity import TopologyIdentity


class Hooks:
    def __init__(self, log, name):
        self.log, self.name = log, name

    def pre_rollback(self):
        self.log.append(self.name)


@pytest.fixture
def target(tmp_path):
    component = SimpleNamespace(id="sum", parallelism=2, configuration={})
    return StatefulTarget(tmp_path, TopologyIdentity("t", "1"), component, ManagedState("sum", hooked=True))


def test_a_discarded_attempt_cannot_use_its_state(target):
    turn = TaskTurn(target, 0, 1)
    turn.active = True
    turn.check()
    turn.discard()
    with pytest.raises(StateError, match="used outside of its transaction"):
        turn.check()


@pytest.mark.parametrize(("txid", "expected"), [(1, [3, 2, 1]), (2, [3, 2]), (3, [3]), (4, [])])
def test_a_failed_transaction_and_all_later_ones_are_discarded_the_latest_first(target, txid, expected):
    log, group = [], target
    for one in (1, 2, 3):
        group.handle("sum", 0, one).bolt = Hooks(log, one)
        if one < 3:
            group.end_txid(one)
    group.drop_from(txid)
    assert log == expected


@pytest.mark.parametrize(
    ("last", "recorded", "decided", "fault"),
    [
        (4, 4, set(), None),
        (5, 4, set(), "is at txid 5, the ledger at 4; restore both from the same copy"),
        (3, 4, set(), "expected txid 4, found 3: it was lost"),
        (None, 4, set(), "expected txid 4, found nothing"),
        (3, 4, {4}, None),
        (2, 4, {4}, "expected txid 4, found 2"),
        (None, None, set(), None),
    ],
)
def test_a_state_has_what_the_ledger_says(target, last, recorded, decided, fault):
    if fault is None:
        target._check(0, last, 4, recorded, decided)
    else:
        with pytest.raises(TableCorrupt, match=fault):
            target._check(0, last, 4, recorded, decided)
