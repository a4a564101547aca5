"""Trouble in a simulated world: faults between steps, user requests, and an operator's savepoints and rewinds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from txstorm.books.rewind import Rewind
from txstorm.books.savepoint import SavedTable, Savepoint
from txstorm.coordinator import events as ev
from txstorm.errors import DataDirectoryError
from txstorm.ledger.paths import CURRTX, DROPPED, TABLES, savepoint_path
from txstorm.ledger.port import ABSENT, Check
from txstorm.recovery.rewind import carry_out, planned
from txstorm.simulation import schedule as kinds
from txstorm.simulation.damage import damage, refused
from txstorm.simulation.delta.tables import SimRows, SimTable
from txstorm.simulation.expected import Violation
from txstorm.simulation.process import Process
from txstorm.simulation.schedule import INCARNATION, PAUSE, TOPOLOGY
from txstorm.storage.tables.as_of import version_as_of
from txstorm.storage.tables.identity import TableRef, TopologyIdentity
from txstorm.storage.tables.intent import SINK, STATE

if TYPE_CHECKING:
    from txstorm.simulation.process import Process
    from txstorm.simulation.world import World


RESTORING = 6
"""Approximate number of steps of a rewind from its decision until half of the tables are restored."""


def name_last(process: Process) -> None:
    """Create a savepoint of the last committed transaction; a second one of the same name must be refused."""
    txid, path = process.books.committed(), savepoint_path(f"s{process.world.unique()}")
    if txid > process.world.judge.currtx - 1 or (
        txid < process.world.judge.currtx - 1 and process.world.leads(process)
    ):
        raise Violation(2, f"{process} takes txid {txid} for the last committed one")
    rows = [row for found in process.books.history().values() for row in found if row["txid"] == txid]
    if not rows:
        return
    where = {uri: SavedTable(_version(table, txid)) for uri, table in process.tables.items()}
    document, stamp = rows[0]["extents"], rows[0]["stamp"]
    made = Savepoint("s", TOPOLOGY, INCARNATION, process.owner.timeline, txid, document, stamp, 0, where)
    made_it = [process.books.put_if([Check(path, ABSENT)], {path: made.to_json()}) for _ in range(2)]
    if made_it != [True, False] or path not in process.world.entries.at:
        raise Violation(9, f"{process} creates {path} twice, and the results are {made_it}")


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
    carry_out(process.place, process.books, decided, process.world.lanes)
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

DRAINS = 20
"""Number of rounds after which a stopping coordinator must have committed the transactions in flight."""


def rival(world: World) -> None:
    """Make the leader lose its lease without noticing, and start a second coordinator beside it.

    Often one of them has just written files that are not referenced yet while the other one sweeps: the second one when
    it stops, or the first one, which was paused in the middle of its sweep.
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
    second = world.start()
    if who == 2 and first in world.processes:
        world.count(kinds.SAVEPOINT, f"{first} creates a savepoint")
        world.act(first, name_last)
    if who == 0:
        _stop(world, second)
    if who == 1:
        _keep_up_now(world, second)
        if first in world.processes and first.group is None:
            world.count(kinds.SWEEP, f"{first} sweeps")
            world.act(first, Process.sweep)


def lose_lease(world: World) -> None:
    """Make the leader lose its lease, which becomes free."""
    if world.leader() is not None and not world.schedule.external:
        world.count(kinds.LEASE, "the lease is lost")
        world.entries.holder = None


def unlikely(world: World, process: Process) -> None:
    """Cause a minor event: a failing batch or committer, a late or repeated answer, upkeep, or a sweep."""
    which = world.below(6)
    if which == 0 and process.jobs:
        world.count(kinds.BATCH, f"a batch of {process} fails")
        process.fail(world.below(8), resume=world.below(3) > 0, emitted=world.below(2) > 0)
    elif which == 1 and process.group is not None:
        world.count(kinds.COMMIT_FAILS, f"a committer of {process} fails")
        process.commit(world.below(len(process.group.txids)))
    elif which == 3 and process.group is None:
        world.count(kinds.SWEEP, f"{process} sweeps")
        process.sweep()
    elif which > 3:
        _keep_up(world, process, compact=which > 4)
    elif which == 2 and process.jobs and world.below(2):
        process.lie(world.below(8))
    elif process.dead or process.ready:
        world.count(kinds.STALE, f"{process} gets a late event")
        process.stale(world.below(len(process.dead) + len(process.ready)), world.below(3))


def deploy(world: World) -> None:
    """Deploy code with a table more or fewer, perhaps several times; usually the leader is stopped or paused first.

    A start without permission to drop the tables that its code lacks is refused before it writes anything.
    """
    for _ in range(1 + world.below(3)):
        process = world.leader()
        if process is not None and not process.busy and (world.schedule.external or world.below(3)):
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
        started = world.start()
        world.late_creation = False
        if started not in world.processes and world.below(2):
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
            if not process.busy:
                world.ended(process, "is stopped")
        world.code, world.drop = now
        if not world.processes:
            world.start()


def _commit_more(world: World) -> None:
    world.more()
    process = world.leader() or (None if world.processes else world.start())
    if process is not None and process in world.processes and not process.busy:
        world.act(process, Process.work_off)


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
    world.now = max(0, world.now + world.below(2000) - 1000)


def rewind(world: World) -> None:
    """Stop the leader and rewind; a paused coordinator may remain.

    Often that coordinator has just written files that are not referenced yet, and wakes up in the middle of the rewind.
    """
    if world.schedule.external or world.entries.at.get(CURRTX) is None:
        return  # a user's database cannot be rewound, or nothing is committed yet
    process = world.leader()
    asleep = process is not None and not process.busy and world.below(3) == 0
    if asleep and process is not None:
        _keep_up_now(world, process)
    elif process is not None and not process.busy:
        world.ended(process, "is stopped")
    operator = world.process("rewind")
    world.entries.holder = None
    world.count(kinds.REWIND, f"{operator} starts")
    if not asleep and world.below(2):
        world.arm(REWIND_STEPS)
    share = world.draw()
    world.act(operator, lambda one: rewind_to_share(one, share, asleep=asleep))
    if operator in world.processes:
        world.ended(operator, "is done")


def back_and_forth(world: World) -> None:
    """Commit, compact the state and rewind, two or three times.

    A rewind then encounters versions of the state that an earlier rewind has removed, and others that reappear.
    """
    if world.schedule.tables == 1 or world.schedule.external:
        return  # the world has no state
    for _ in range(2 + world.below(2)):
        for _ in range(1 + world.below(3)):
            world.more()
            process = world.leader() or world.start()
            if process in world.processes:
                world.count(kinds.COMPACTION, f"{process} commits what there is, and a compaction")
                world.act(process, _compacted)
        for stored in world.tables.values():
            if stored.versions and world.below(3) == 0:
                stored.foreign()
        rewind(world)


def _compacted(process: Process) -> None:
    process.work_off()
    if process.begin_upkeep(compact=True):
        process.end_upkeep()


def _keep_up_now(world: World, process: Process) -> None:
    """Begin upkeep in a process, which may have ended in the meantime."""
    if process in world.processes:
        world.act(process, lambda one: _keep_up(world, one, compact=world.below(2) > 0))


def _keep_up(world: World, process: Process, *, compact: bool) -> None:
    """Write the files of a compaction or small-file compaction, if needed; they are committed later."""
    for this in (compact, not compact):
        if process.begin_upkeep(compact=this):
            world.count(kinds.COMPACTION if this else kinds.GATHERING, f"{process} writes files")
            return


def savepoint(world: World) -> None:
    """Create a savepoint of the last committed transaction."""
    process = world.processes[world.below(len(world.processes))] if world.processes else None
    if process is not None:
        world.count(kinds.SAVEPOINT, f"{process} creates a savepoint")
        world.act(process, name_last)


def stop(world: World) -> None:
    """Stop the leader cleanly."""
    process = world.leader()
    if process is not None:
        _stop(world, process)


def deactivate(world: World) -> None:
    """Deactivate or activate the topology."""
    process = world.leader()
    if process is not None:
        world.count(kinds.INACTIVE, f"{process} is {'de' if process.starts else ''}activated")
        world.act(process, lambda one: one.activate(active=not one.starts))


def _stop(world: World, process: Process) -> None:
    """Stop `process`, leader or not: finish the group being committed, flush the history, sweep files."""
    if process not in world.processes:
        return
    drains, in_vain = world.below(3) == 0, world.below(3) == 0

    def end(process: Process) -> None:
        process.starts, process.goes_on = False, drains
        begun = process.state.started
        process.feed(ev.Stopping(drain=drains))
        if drains:
            _drain(process, begun)
        if process.group is not None:
            process.commit(world.below(len(process.group.txids)) if in_vain else None)
        if not process.state.stopped:
            raise Violation(7, f"{process} has stopped, but its state is not empty: {process.state}")
        process.books.check_lease()
        process.flush_history()
        process.books.check_lease()
        process.sweep()

    world.count(kinds.STOP, f"{process} is to stop")
    world.act(process, end)
    if process in world.processes:
        world.ended(process, "has stopped")


def _drain(process: Process, begun: int) -> None:
    """Commit all transactions below txid `begun`; every round commits a group or removes an obstacle."""
    for _ in range(DRAINS):
        if process.state.stopped:
            break
        process.work_off()
    if process.state.currtx < begun:
        raise Violation(7, f"{process} does not commit everything in flight, up to txid {begun - 1}: {process.state}")


TROUBLE = (
    *(rival, rival, lose_lease, go_away, jump, savepoint, stop, deactivate, damage),
    *(rewind, rewind, rewind, back_and_forth),
    *(deploy, deploy),
)
