"""Trouble in a simulated world: requests of users and operators, other processes, and power cuts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from txstorm.books.requests import ACTIVATE, DEACTIVATE, KILL
from txstorm.books.rewind import Rewind
from txstorm.books.savepoint import SavedTable, Savepoint
from txstorm.errors import DataDirectoryError
from txstorm.ledger.paths import CURRTX, DROPPED, TABLES, savepoint_path
from txstorm.ledger.port import ABSENT, Check
from txstorm.recovery.rewind import carry_out, planned
from txstorm.simulation import schedule as kinds
from txstorm.simulation.damage import damage, refused
from txstorm.simulation.delta.tables import SimRows, SimTable
from txstorm.simulation.process.process import Process
from txstorm.simulation.schedule import INCARNATION, PAUSE, TOPOLOGY
from txstorm.storage.tables.as_of import version_as_of
from txstorm.storage.tables.identity import TableRef, TopologyIdentity
from txstorm.storage.tables.intent import SINK, STATE

if TYPE_CHECKING:
    from txstorm.simulation.world import World


RESTORING = 6
"""Approximate number of steps of a rewind from its decision until half of the tables are restored."""


def name_last(process: Process) -> None:
    """Create a savepoint of the last committed transaction; a second one of the same name must be refused."""
    world, books, session = process.world, process.books, process.session
    assert session is not None
    txid, path = books.committed(), savepoint_path(f"s{world.unique()}")
    if txid > world.judge.currtx - 1:
        world.violates(2, f"{process} takes txid {txid} for the last committed one")
    rows = [row for found in books.history().values() for row in found if row["txid"] == txid]
    if not rows:
        return
    where = {uri: SavedTable(_version(process.open_table(table.ref), txid)) for uri, table in process.tables.items()}
    document, stamp = rows[0]["extents"], rows[0]["stamp"]
    made = Savepoint("s", TOPOLOGY, INCARNATION, process.owner.timeline, txid, document, stamp, 0, where)
    made_it = [books.put_if([Check(path, ABSENT)], {path: made.to_json()}) for _ in range(2)]
    if made_it != [True, False] or path not in world.entries.at:
        world.violates(9, f"{process} creates {path} twice, and the results are {made_it}")


def _version(table: SimTable, txid: int) -> int:
    """Return the version of a table that a savepoint names; for a state a permanent one."""
    return version_as_of(table, txid, stays=True)[0] if table.ref.kind == STATE else table.version


def rewind_to_share(process: Process, share: float, *, asleep: bool) -> bool:
    """Undo the commits after a txid, like ``txstorm rewind``; return False if there are none.

    With `asleep`, a paused process wakes up in the meantime.
    """
    identity = process.lead()
    last = process.books.currtx() - 1
    if last < 1:
        return False
    txid = int(share * last)
    owner = TopologyIdentity(identity.topology, identity.incarnation, identity.timeline)
    row = _row(process, identity.timeline, txid) if txid else None
    tables = tuple(
        planned(process.place.table(owner, stored.ref), txid, SimRows(process, stored))
        for stored in process.world.tables.values()
        if stored.versions
    )
    if asleep:
        process.world.arm(RESTORING, PAUSE)
    timeline = identity.timeline + 1
    decided = Rewind(TOPOLOGY, INCARNATION, timeline, process.books.epoch, txid, row, tables)
    process.books.decide_rewind(decided)
    carry_out(process.place, process.books, decided, process.lanes)
    return True


def _row(process: Process, timeline: int, txid: int) -> dict[str, Any]:
    own = {"timeline": timeline + 1, "first": txid, "last": txid, "versions": {}}
    known = [*process.world.history, *(row for rows in process.books.history().values() for row in rows)]
    rows = [row for row in known if row["txid"] == txid]
    if not rows:  # like `history_row`: for a stale coordinator, another one may have rewound the txid
        raise DataDirectoryError(f"the history does not contain txid {txid}")
    return {**rows[-1], **own}


REWIND_STEPS = 80
"""Approximate number of steps of a rewind."""

TAKING_OVER = 30
"""Approximate number of steps of a take-over."""

FIRST = TableRef(SINK, "out").uri
"""A table that is never dropped."""

MOST_TABLES = 6
"""Maximum number of tables that a world ever has."""

PATIENCE = 2000
"""Maximum number of choices of a lane for which the world waits for an operator's command."""


def rival(world: World) -> None:
    """Make the leader lose its lease without noticing, and start a second coordinator beside it.

    Often one of them has just written files that are not referenced yet while the other one sweeps, when it stops.
    """
    first = world.leader()
    if first is None or world.schedule.external:
        return
    who = world.below(3)
    if who == 0:
        _keep_up_now(world, first)
    if who == 2:
        world.arm(1, kinds.PAUSE_AFTER)  # as soon as it has raised the epoch
    world.count(kinds.RIVAL, "a second coordinator")
    second = world.started() if world.below(2) else world.start()
    if who == 2 and first in world.processes and first.opened:
        world.count(kinds.SAVEPOINT, f"{first} creates a savepoint")
        first.does("savepoint", lambda: name_last(first))
    if who == 0 and second is not None:
        _stop(world, second)
    if who == 1 and second is not None:
        _keep_up_now(world, second)
        _stop(world, first)


def lose_lease(world: World) -> None:
    """Make the leader lose its lease, which becomes free."""
    if world.leader() is not None and not world.schedule.external:
        world.count(kinds.LEASE, "the lease is lost")
        world.entries.holder = None


def deploy(world: World) -> None:
    """Deploy code with a table more or fewer, perhaps several times; usually the leader is stopped or paused first.

    A start without permission to drop the tables that its code lacks is refused before it writes anything.
    """
    for _ in range(1 + world.below(3)):
        process = world.leader()
        if process is not None and not process.is_frozen and (world.schedule.external or world.below(3)):
            world.ended(process, "is stopped")
        if world.schedule.external and world.processes:
            return  # one coordinator at a time
        before = world.code, world.drop
        goes = [uri for uri in world.code if uri != FIRST and not uri.startswith(f"{STATE}/")]
        if goes and world.below(2):
            _drop(world, goes[world.below(len(goes))])
        elif len(world.tables) < MOST_TABLES:
            world.add()
            world.count(kinds.ADDED, f"the code has {world.code[-1]}")
            world.late_creation = not world.schedule.external and world.below(2) == 0
        if world.below(2):
            world.arm(TAKING_OVER)
        started = world.started()
        world.late_creation = False
        if started is None and world.below(2):
            _roll_back(world, *before)
        if world.below(2):
            _commit_more(world)
    if world.below(3) == 0:
        rewind(world)


def _roll_back(world: World, code: tuple[str, ...], drop: frozenset[str]) -> None:
    """Run the previous `code` for a while, after a coordinator with new code died before recording its tables."""
    at = world.entries.at
    tables, dropped = (world.values.decode(at[one].value, "") if one in at else {} for one in (TABLES, DROPPED))
    if set(tables) <= set(code) and not dropped.get("tables", {}).keys() - drop:
        now = world.code, world.drop
        world.code, world.drop = code, drop
        _commit_more(world)
        for process in list(world.processes):
            if not process.is_frozen:
                world.ended(process, "is stopped")
        world.code, world.drop = now
        if not world.processes:
            world.started()


def _commit_more(world: World) -> Process | None:
    """Have the leader commit what there is; return it, if it is still there."""
    world.more()
    process = world.leader() or (None if world.processes else world.started())
    if process is None or process.is_frozen:
        return None
    world.lets_run(400, lambda: process not in world.processes or process.is_done(), jumps=10)
    return process if process in world.processes else None


def _drop(world: World, gone: str) -> None:
    world.code = tuple(uri for uri in world.code if uri.partition("/")[2] != gone.partition("/")[2])
    if world.below(2):
        refused(world, f"the code no longer has {gone}")
    world.count(kinds.DROPPED, f"{gone} is to be dropped")
    world.drop |= {gone}


def go_away(world: World) -> None:
    """Make a partition of the source unavailable, or available again."""
    world.count(kinds.AWAY, "a partition goes away, or comes back")
    world.away ^= {world.below(world.schedule.partitions)}
    world.news += 1


def jump(world: World) -> None:
    """Make the wall clock jump, forwards or backwards."""
    world.count(kinds.CLOCK, "the clock jumps")
    world.epoch = max(0, world.epoch + (world.below(2000) - 1000) * 1000 ** world.below(3))


def rewind(world: World) -> None:
    """Stop the leader and rewind; a paused coordinator may remain.

    Often that coordinator has just written files that are not referenced yet, and wakes up in the middle of the rewind.
    """
    if world.schedule.external or world.entries.at.get(CURRTX) is None:
        return  # a user's database cannot be rewound, or nothing is committed yet
    process = world.leader()
    asleep = process is not None and not process.is_frozen and world.below(3) == 0
    if asleep and process is not None:
        _keep_up_now(world, process)
    elif process is not None and not process.is_frozen:
        world.ended(process, "is stopped")
    operator = world.process("rewind")
    world.entries.holder = None
    world.count(kinds.REWIND, f"{operator} starts")
    if not asleep and world.below(2):
        world.arm(REWIND_STEPS)
    share = world.draw()
    operate(world, operator, lambda: rewind_to_share(operator, share, asleep=asleep))


def operate(world: World, operator: Process, call: Callable[[], object]) -> None:
    """Have an operator's process make a call, then end, while others run; wait for it, but not for ever."""

    def body() -> None:
        error: BaseException | None = None
        try:
            call()
        except Exception as failure:  # noqa: BLE001 - judged by the world
            error = failure
        operator.ledger.close()
        world.finished(operator, error)

    operator.lanes.start(body, "command")
    world.lets_run(PATIENCE, lambda: operator not in world.processes, jumps=5)


def back_and_forth(world: World) -> None:
    """Commit, compact the state and rewind, two or three times.

    A rewind then encounters versions of the state that an earlier rewind has removed, and others that reappear.
    """
    if world.schedule.tables == 1 or world.schedule.external:
        return  # the world has no state
    for _ in range(2 + world.below(2)):
        for _ in range(1 + world.below(3)):
            process = _commit_more(world)
            if process is not None:
                _keep_up_now(world, process)
        for stored in world.tables.values():
            # No txstorm can answer for what another writer builds on an entry whose writer died before its sync.
            if stored.versions and world.below(3) == 0 and not stored.at_risk():
                stored.foreign()
        rewind(world)


def _keep_up_now(world: World, process: Process) -> None:
    """Have a process begin upkeep soon, unless it has ended in the meantime."""
    if process in world.processes and process.store is not None:
        process.store.upkeep.wanted = True
        world.lets_run(30, jumps=2)


def stand_by(world: World) -> None:
    """Start a run that stands by for the leader; then that one ends or loses its lease, and the other one has to lead.

    If the leader is ended with ``txstorm kill``, the other one has to end as well.
    """
    first = world.leader()
    if first is None or not first.opened or first.is_frozen:
        return
    second = world.start(standby=True)
    world.count(kinds.STANDBY, f"{second} stands by for {first}")
    world.lets_run(20 + world.below(60), jumps=1 + world.below(3))
    how = world.below(3 if world.schedule.external else 5)
    if how == 0:
        world.ended(first, "is dead")
    elif how == 1:
        _stop(world, first)
    elif how == 2:
        operator, first.stops = world.process("command"), True
        world.count(kinds.KILLED, f"{operator} kills {first}")
        operate(world, operator, lambda: operator.asks(KILL, wait_seconds=10.0 * world.below(2)))
    else:
        lose_lease(world)
        first.frozen = world.scheduler.picks + 200 * (how - 3)

    def waits() -> bool:
        return second in world.processes and not second.opened

    def is_free() -> bool:
        return waits() and second.waits and world.entries.holder is None

    world.lets_run(PATIENCE, lambda: not waits(), jumps=60)
    if is_free():  # perhaps only just: the leader may have hung for long
        world.lets_run(PATIENCE, lambda: not waits(), jumps=60)
    if is_free():
        world.violates(7, f"{second} stands by, and does not acquire the lease")
    status = world.status()
    if second.opened and status["mode"] == "killed" and f"pid {status['pid']} on" in str(second.told):
        world.violates(7, f"{second} leads, though {status['pid']} was killed while it stood by")


def power_cut(world: World) -> None:
    """Cut the power when something is not synced, often while a start follows one that died before it synced."""
    process = world.leader() or world.start()
    if world.below(2):
        world.at_sync = Process.dies
        world.more()
        world.lets_run(400, lambda: process not in world.processes, jumps=10)
        world.start()
    world.at_sync = world.cut
    world.more()
    world.lets_run(400, lambda: not world.processes, jumps=10)
    world.at_sync = None


def savepoint(world: World) -> None:
    """Create a savepoint of the last committed transaction."""
    process = world.processes[world.below(len(world.processes))] if world.processes else None
    if process is not None and process.opened:
        world.count(kinds.SAVEPOINT, f"{process} creates a savepoint")
        process.does("savepoint", lambda: name_last(process))


def stop(world: World) -> None:
    """Stop the leader."""
    process = world.leader()
    if process is not None:
        _stop(world, process)


def deactivate(world: World) -> None:
    """Have an operator deactivate or activate the topology."""
    process = world.leader()
    if process is None or process.state is None:
        return
    active = process.is_inactive
    operator = world.process("command")
    world.count(kinds.INACTIVE, f"{process} is {'' if active else 'de'}activated")
    operate(world, operator, lambda: operator.asks(ACTIVATE if active else DEACTIVATE))


def _stop(world: World, process: Process) -> None:
    """Stop `process`, leader or not, cleanly or after committing what is in flight; others may run meanwhile."""
    handle = process.handle
    if process not in world.processes or handle is None or process.stops:
        return
    drains, begun, process.stops = world.below(3) == 0, process.state.started if process.state else 0, True
    world.count(kinds.STOP, f"{process} is to stop")

    def end() -> None:
        handle.stop(drain=drains)
        state = process.state
        ended = handle.exception() is not None or handle.killed is not None  # a kill cancels what is still in flight
        if drains and not ended and state is not None and state.currtx < begun:
            world.violates(7, f"{process} does not commit everything in flight, up to txid {begun - 1}: {state}")

    process.does("stop", end)
    if world.below(2):
        world.lets_run(300, lambda: process not in world.processes, jumps=20)


TROUBLE = (
    *(rival, rival, lose_lease, go_away, jump, savepoint, stop, deactivate, damage, damage),
    *(rewind, rewind, rewind, rewind, back_and_forth, back_and_forth),
    *(deploy, deploy, deploy, stand_by, stand_by, power_cut, power_cut),
)
