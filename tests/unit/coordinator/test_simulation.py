"""Random schedules of the coordinator's state machine in a simulated world, which must detect every mutant of it.

TXSTORM_SIMULATION_SEED and TXSTORM_SIMULATION_SCHEDULES set the first seed and the number of schedules.
"""

import os
from collections import Counter

import pytest
from coordinator_world import Violation, run

from txstorm.coordinator import journal, machine
from txstorm.coordinator.commands import COMMANDS, Commit, Forget
from txstorm.coordinator.events import EVENTS

FIRST = int(os.environ.get("TXSTORM_SIMULATION_SEED", "0"))
SCHEDULES = int(os.environ.get("TXSTORM_SIMULATION_SCHEDULES", "5000"))


def test_random_schedules_keep_every_invariant():
    print(f"seeds {FIRST} to {FIRST + SCHEDULES - 1}")
    for seed in range(FIRST, FIRST + SCHEDULES):
        run(seed)


def test_the_schedules_reach_every_event_and_command():
    met = Counter()
    for seed in range(FIRST, FIRST + 300):
        for event, commands in run(seed).trace:
            met.update((type(event), *map(type, commands)))
    assert {kind: met[kind] for kind in (*EVENTS, *COMMANDS) if met[kind] < 20} == {}


def test_a_seed_gives_the_same_trace_twice_and_its_journal_replays():
    for seed in range(FIRST, FIRST + 100):
        print(f"seed {seed}")
        world = run(seed)
        assert run(seed).trace == world.trace
        lines = [journal.header(world.config), *(journal.record(event, commands) for event, commands in world.trace)]
        replayed = journal.replay(lines)
        assert (replayed.steps, replayed.state, replayed.difference) == (len(world.trace), world.state, None)


# --- mutants ----------------------------------------------------------------------------------------------------------


def literal_storm_fail(state, event, original=machine._failed):
    """Mutant: a stale failure drops the current attempt but not later ones, and the gap is planned again."""
    index = event.txid - state.currtx
    if 0 <= index < len(state.entries) and state.entries[index].attempt_id != event.attempt_id:
        entries = state.entries[:index] + state.entries[index + 1 :]
        return state._replace(entries=entries), ()
    return original(state, event)


def ack_of_a_stale_attempt(state, event, original=machine._processed):
    index = event.txid - state.currtx
    if 0 <= index < len(state.entries):
        event = type(event)(event.txid, state.entries[index].attempt_id)
    return original(state, event)


def any_attempt_is_current(state, index, attempt_id):
    return 0 <= index < len(state.entries)


def group_of_whatever_is_there(state, original=machine._due):
    return min(len(state.entries), state.config.max_group) if original(state) else 0


def commits_n_plus_1_before_n(state, original=machine._sync):
    """Mutant: commits any processed txid, whatever its position in the window."""
    for index, entry in enumerate(state.entries):
        if not state.committing and entry.status is machine.PROCESSED:
            return original(state)[0], (Commit((state.currtx + index,), (entry.attempt_id,)),)
    return original(state)


def next_group_while_one_is_committing(state, original=machine._sync):
    rest = state._replace(
        committing=0, entries=state.entries[state.committing :], currtx=state.currtx + state.committing
    )
    group = tuple(range(rest.currtx, rest.currtx + machine._due(rest)))
    after, commands = original(state)
    if not state.committing or not group:
        return after, commands
    return after, (Commit(group, tuple(one.attempt_id for one in rest.entries[: len(group)])), *commands)


def failure_leaves_later_ones(state, event, original=machine._failed):
    after, commands = original(state, event)
    return (after._replace(started=event.txid), commands) if commands else (after, commands)


def forgets_what_the_next_is_planned_from(committed):
    return Forget(committed + 1)


def late_plan_is_taken(state, event, original=machine._planned):
    return original(state._replace(void=False), event)


def window_is_one_too_wide(state, txid, *, replay, original=machine._may_plan):
    wide = machine.Config(state.config.max_pending + 1, state.config.max_group, state.config.opaque)
    return original(state._replace(config=wide), txid, replay=replay)


def rest_of_a_group_stays_committing(state, event, original=machine._committed):
    after, commands = original(state, event)
    left = state.committing - (event.txid - state.currtx + 1)
    return (after._replace(committing=left), commands) if commands and left > 0 else (after, commands)


MUTANTS = [
    ("_failed", literal_storm_fail),
    ("_processed", ack_of_a_stale_attempt),
    ("_is_current", any_attempt_is_current),
    ("_due", group_of_whatever_is_there),
    ("_sync", commits_n_plus_1_before_n),
    ("_sync", next_group_while_one_is_committing),
    ("_failed", failure_leaves_later_ones),
    ("_forget", forgets_what_the_next_is_planned_from),
    ("_planned", late_plan_is_taken),
    ("_may_plan", window_is_one_too_wide),
    ("_committed", rest_of_a_group_stays_committing),
]


@pytest.mark.parametrize(("name", "mutant"), MUTANTS, ids=[mutant.__name__ for _, mutant in MUTANTS])
def test_the_world_detects_a_mutant(monkeypatch, name, mutant):
    monkeypatch.setattr(machine, name, mutant)
    with pytest.raises(Violation, match=r"seed \d+"):
        for seed in range(FIRST, FIRST + 1000):
            run(seed)
