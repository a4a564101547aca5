"""Rules of the port `Target`, for every kind of target: those of txstorm, and one that only a test knows."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from crashes import crashing
from outlet_nets import MemoryWriter, Send
from outlet_nets import Target as Rows
from own_target import LinesTarget, lines_in, lines_target
from store_cases import open_store

from txstorm import TransactionalTopologyBuilder
from txstorm.api.external import ManagedState, MapState, OwnTarget, TargetDeclaration
from txstorm.api.external import Outlet as OutletDeclaration
from txstorm.api.join_store import StoreRow, StoreUse
from txstorm.errors import FencedError, StateError, TopologyError
from txstorm.joins import MemoryStore
from txstorm.joins.delay.staged_rows import RowForm
from txstorm.joins.delay.store_target import FilledStore
from txstorm.results.read import read_sink, read_state
from txstorm.spouts import MemoryTransactionalSpout
from txstorm.state.external.maps import StoredMap
from txstorm.state.external.memory import MemoryBackend
from txstorm.state.external.targets import StoredOutlet
from txstorm.stateful.memory import MemoryStateProvider
from txstorm.stateful.target import StatefulTarget
from txstorm.storage.tables.identity import TopologyIdentity, table_ref
from txstorm.storage.tables.intent import KINDS, STAGED, Intent, TxidRecord

OWNER = TopologyIdentity("words", "0a1b2c")


class Case(NamedTuple):
    """A target: made anew by each coordinator, with what a task writes in a txid, and what is published."""

    make: Callable[[], Any]
    write: Callable[[Any, int], object]
    published: Callable[[], Any]


def table(path: Path, uri: str, write: Callable[[Any, int], object]) -> Case:
    epochs = iter(range(1, 9))

    def make() -> Any:
        store = open_store(path, create=not (path / "state").exists(), epoch=next(epochs))
        store.load()
        return store._targets[uri]

    def published() -> Any:
        found = read_sink(path, "out") if uri.startswith("sinks") else read_state(path, "counts")
        return sorted(found["n"].to_pylist())

    return Case(make, write, published)


def state(path: Path) -> Case:
    return table(path, "changes/counts", lambda handle, txid: handle.put(f"w{txid}", txid))


def sink(path: Path) -> Case:
    return table(path, "sinks/out", lambda handle, txid: handle.append("w", txid))


def map_(path: Path) -> Case:
    backend = MemoryBackend()
    return Case(
        lambda: StoredMap(path, OWNER, "count", MapState("m", backend)),
        lambda handle, txid: handle.put(str(txid), txid),
        lambda: sorted(row.value for row in backend.rows.values()),
    )


def outlet(path: Path) -> Case:
    rows = Rows()
    declared = OutletDeclaration("o", {"n": int}, MemoryWriter(rows))
    return Case(
        lambda: StoredOutlet(path, OWNER, "count", declared),
        lambda handle, txid: handle.append(txid),
        lambda: [row["n"] for row in rows.rows],
    )


def store(path: Path) -> Case:
    use = StoreUse("count", MemoryStore(), fills=True, batch_size=2)

    def write(handle: Any, txid: int) -> None:
        form = RowForm(("key", "id"), ("key",), "id")
        handle.put(form, form.staged([("k", str(txid))], [txid]))

    def published() -> list[int]:
        found: list[StoreRow] = use.store.get_many(["k"], 0, 9)["k"]
        return [row.time for row in found]

    return Case(lambda: FilledStore(path, OWNER, use), write, published)


def stateful(path: Path) -> Case:
    provider = MemoryStateProvider()
    component = SimpleNamespace(id="count", parallelism=1, configuration={})
    managed = ManagedState("count", provider=provider, may_be_lost=True)

    def write(handle: Any, txid: int) -> None:
        handle.begin(object()).put(str(txid), txid)
        handle.prepare()

    def published() -> list[int]:
        return sorted(value for _, value in provider.new_state("count-0"))

    return Case(lambda: StatefulTarget(path, OWNER, component, managed), write, published)


def own(path: Path) -> Case:
    declared = lines_target(path / "lines.json")
    return Case(
        lambda: LinesTarget(path, OWNER, "count", declared),
        lambda handle, txid: handle.append(str(txid)),
        lambda: [int(line) for line in lines_in(path / "lines.json")],
    )


GROUPED = [state, sink, map_, outlet, store, own]
"""Kinds that may have several transactions in a group; a bolt whose state a provider keeps has one at a time."""


def name_of(case: Callable[..., Case]) -> str:
    return case.__name__.strip("_")


@pytest.fixture(params=[*GROUPED, stateful], ids=name_of)
def case(request, tmp_path):
    return request.param(tmp_path)


@pytest.fixture(params=GROUPED, ids=name_of)
def grouped(request, tmp_path):
    return request.param(tmp_path)


def led(case: Case, epoch: int = 1, committed: int = 0) -> Any:
    """Return the target of a coordinator that has taken over at `committed`."""
    target = case.make()
    if target.ref.outside:
        target.lead(epoch, committed, committed or None, [])
    return target


def ended(target: Any, case: Case, *txids: int) -> None:
    for txid in txids:
        target.begin(txid, txid)
        handle = target.handle("count", 0, txid)
        assert handle is target.handle("count", 0, txid)
        handle.active = True
        case.write(handle, txid)
        target.end_txid(txid)
        assert not handle.active


def staged(target: Any, *txids: int, epoch: int = 1) -> Intent:
    records = [TxidRecord(txid, txid * 10, f"d{txid}", None, txid) for txid in txids]
    table = target.staging(records, epoch)()
    return Intent(OWNER.topology, OWNER.incarnation, 0, epoch, tuple(records), (table,))


def publish(target: Any, intent: Intent, epoch: int = 1) -> None:
    target.publish(1, intent.tables[0], intent, epoch)


def test_groups_are_published_once_in_order_and_their_rows_are_released(grouped):
    target = led(grouped)
    ended(target, grouped, 1, 2)
    first = staged(target, 1, 2)
    ended(target, grouped, 3)  # while the first group is being published
    assert target.in_use() == {first.tables[0].staged.path}
    for _ in range(2):
        publish(target, first)
    assert (grouped.published(), target.in_use(), target.last) == ([1, 2], set(), 2)
    target.apply(2)
    second = staged(target, 3)
    assert second.tables[0].previous == 2
    publish(target, second)
    target.apply(3)
    assert (grouped.published(), target.changes(1, 3), target.applied) == ([1, 2, 3], None, 3)
    if target.ref.outside:
        target.forget(3)
        assert [path.name for path in (target.path / STAGED).iterdir()] == [
            second.tables[0].staged.path.removeprefix(f"{STAGED}/")
        ]


def test_a_group_that_is_dropped_leaves_nothing_and_the_next_ones_follow_the_one_before_it(grouped):
    target = led(grouped)
    ended(target, grouped, 1, 2, 3)
    first = staged(target, 1)
    dropped = staged(target, 2, 3)
    assert dropped.tables[0].previous == 1
    open_ = target.handle("count", 0, 4)
    open_.active = True
    target.drop_from(2)
    assert not open_.active
    assert (target.in_use(), target.changes(2, 4)) == ({first.tables[0].staged.path}, None)
    ended(target, grouped, 2, 3)
    again = [staged(target, txid) for txid in (2, 3)]
    assert [one.tables[0].previous for one in again] == [1, 2]
    for intent in (first, *again):
        publish(target, intent)
    target.apply(3)
    assert grouped.published() == [1, 2, 3]
    ended(target, grouped, 4)
    with pytest.raises(StateError, match="txid 3 cannot be staged: the table is already at 3"):
        target.staging([TxidRecord(3, 30, "d", None, 3), TxidRecord(4, 40, "d", None, 4)], 1)


@pytest.mark.parametrize("point", ["p7.1.before", "p7.1.written", "p7.1.after"])
def test_a_publication_that_fails_at_any_step_is_rolled_forward_by_the_next_coordinator(case, point):
    target = led(case)
    ended(target, case, 1)
    publish(target, staged(target, 1))
    target.apply(1)
    ended(target, case, 2)
    intent = staged(target, 2)
    with crashing(point):
        publish(target, intent)
    second = case.make()
    if second.ref.outside:
        second.lead(2, 2, 1, [intent])
    for _ in range(2):
        publish(second, intent, epoch=2)
    assert (case.published(), second.last) == ([1, 2], 2)


def test_a_stale_coordinator_publishes_nothing(case):
    target = led(case)
    ended(target, case, 1)
    intent = staged(target, 1)
    second = case.make()
    if second.ref.outside:
        second.lead(2, 1, None, [intent])
    with pytest.raises(FencedError):
        publish(target, intent)
    assert case.published() == []


def test_kinds_are_a_fixed_table_beside_which_only_marked_names_stand():
    declarations = [*TargetDeclaration.__subclasses__()]
    known = {one.committed_as for one in declarations if one is not OwnTarget}
    assert known == {kind.name for kind in KINDS if kind.outside}
    assert table_ref("x-lines/a").outside
    for uri in ("y-lines/a", "x-/../a", "lines/a", "x-lines"):
        with pytest.raises(Exception, match="expected a table of this data directory"):
            table_ref(uri)


def test_a_kind_of_its_own_needs_a_name_of_its_own(tmp_path):
    def built(*targets: OwnTarget) -> Any:
        bolt = Send(OutletDeclaration("out", {"n": int}, MemoryWriter(Rows())))
        bolt.own = targets
        builder = TransactionalTopologyBuilder("own", "source", MemoryTransactionalSpout([[1]], ["n"]))
        builder.set_bolt("send", bolt).global_grouping("source")
        return builder.build_topology()

    lines = lines_target(tmp_path / "f")
    for targets, fault in [
        ((OwnTarget("map", "lines", LinesTarget),), "the name of a kind of your own begins with 'x-'"),
        ((OwnTarget("x-a/b", "lines", LinesTarget),), "a name is a letter followed by"),
        ((lines, OwnTarget("x-other", "lines", LinesTarget)), "lines"),
    ]:
        with pytest.raises(TopologyError, match=fault):
            built(*targets)
    text = built(lines).describe("json")
    assert '"targets"' in text
