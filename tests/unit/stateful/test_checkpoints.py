"""The checkpoint machine: what it sends and stores, and what holds for tasks that follow it through crashes."""

from __future__ import annotations

import os
import random

import pytest

from txstorm.errors import InputError
from txstorm.stateful import MemoryStateProvider, StatefulBolt
from txstorm.testing import CheckpointMachine, StatefulBoltExecutor

SEED, SCHEDULES = int(os.environ.get("SEED", "0")), int(os.environ.get("SCHEDULES", "300"))


def started(stored=None, interval_ms=0):
    machine = CheckpointMachine(stored, interval_ms)
    machine.start()
    return machine


def test_the_first_start_gives_tasks_their_state_then_checkpoints_follow():
    machine = started()
    assert (machine.sent, machine.stored) == ([("INITSTATE", -1)], (-1, "COMMITTED"))
    machine.ack(-1)
    assert (machine.sent[1:], machine.stored) == ([("PREPARE", 0)], (0, "PREPARING"))
    machine.ack(0)
    assert (machine.sent[2:], machine.stored) == ([("COMMIT", 0)], (0, "COMMITTING"))
    machine.ack(0)
    assert (machine.sent[3:], machine.stored) == ([("PREPARE", 1)], (1, "PREPARING"))


def test_nothing_is_sent_before_the_start():
    machine = CheckpointMachine()
    machine.ack(-1)
    machine.fail(-1)
    machine.pass_time(10_000)
    assert machine.sent == []


def test_checkpoints_wait_for_the_interval_since_the_last_one():
    machine = started(interval_ms=1000)
    machine.ack(-1)
    machine.pass_time(999)
    assert machine.sent == [("INITSTATE", -1)]
    machine.pass_time(1)
    machine.pass_time(400)
    machine.ack(0)
    machine.ack(0)
    assert machine.sent[1:] == [("PREPARE", 0), ("COMMIT", 0)]
    machine.pass_time(599)
    assert len(machine.sent) == 3
    machine.pass_time(1)
    assert machine.sent[3:] == [("PREPARE", 1)]


def test_a_checkpoint_that_became_due_during_another_step_is_sent_with_its_ack():
    machine = started(interval_ms=1000)
    machine.pass_time(1000)
    assert machine.sent == [("INITSTATE", -1)]
    machine.ack(-1)
    assert machine.sent[1:] == [("PREPARE", 0)]


@pytest.mark.parametrize(("status", "message", "state"), [("PREPARING", "ROLLBACK", 4), ("COMMITTING", "COMMIT", 5)])
def test_the_next_start_rolls_an_unprepared_checkpoint_back_and_ends_a_commit_that_has_begun(status, message, state):
    """Row W36."""
    machine = started((5, status))
    assert machine.sent == [(message, 5)]
    machine.ack(5)
    assert (machine.sent[1:], machine.stored) == ([("INITSTATE", state)], (state, "COMMITTED"))
    machine.ack(state)
    assert machine.sent[2:] == [("PREPARE", state + 1)]


def test_a_failed_prepare_starts_the_recovery():
    machine = started((4, "COMMITTED"))
    machine.ack(4)
    machine.fail(5)
    assert machine.sent[1:] == [("PREPARE", 5), ("ROLLBACK", 5)]
    assert (machine.stored, machine.recovering) == ((5, "PREPARING"), True)


@pytest.mark.parametrize(
    ("stored", "message"),
    [((4, "COMMITTED"), ("INITSTATE", 4)), ((4, "COMMITTING"), ("COMMIT", 4)), ((4, "PREPARING"), ("ROLLBACK", 4))],
)
def test_any_other_message_that_failed_is_sent_again(stored, message):
    machine = started(stored)
    machine.fail(4)
    machine.fail(4)
    assert (machine.sent, machine.stored) == ([message] * 3, stored)


def test_a_commit_that_failed_is_sent_again_without_a_recovery():
    machine = started()
    for txid in (-1, 0):
        machine.ack(txid)
    machine.fail(0)
    assert machine.sent[-2:] == [("COMMIT", 0), ("COMMIT", 0)]
    machine.ack(0)
    assert machine.sent[-1] == ("PREPARE", 1)


def test_answers_for_other_txids_and_to_nothing_are_ignored():
    machine = started((4, "PREPARING"))
    for txid in (-1, 3, 5):
        machine.ack(txid)
        machine.fail(txid)
    assert (machine.sent, machine.stored) == ([("ROLLBACK", 4)], (4, "PREPARING"))
    machine = started((4, "COMMITTED"), interval_ms=1000)
    machine.ack(4)
    machine.ack(4)
    machine.fail(4)
    assert (machine.sent, machine.stored) == ([("INITSTATE", 4)], (4, "COMMITTED"))


@pytest.mark.parametrize(
    ("argument", "value", "message"),
    [
        *(
            ("interval_ms", value, r"interval_ms .* expected a number of milliseconds from 0")
            for value in (-1, None, "1000", True, float("nan"))
        ),
        *(
            ("stored", value, r"stored is .* expected")
            for value in (5, (5,), (5, "DONE"), ("5", "COMMITTED"), (True, "COMMITTED"))
        ),
    ],
)
def test_a_wrong_interval_and_what_is_no_checkpoint_are_refused(argument, value, message):
    with pytest.raises(InputError, match=message):
        CheckpointMachine(**{argument: value})


class Sum(StatefulBolt):
    """Keeps the numbers it has seen."""

    def init_state(self, state):
        self.state = state

    def execute(self, tuple):
        self.state.put("seen", [*self.state.get("seen", []), tuple["n"]])


class World:
    """A coordinator and three tasks that follow it, all of which may die; tuples are numbered.

    A task that dies, and a rollback, lose the tuples since the last commit, as Storm's replays are not modelled.
    """

    def __init__(self, rng):
        self.rng = rng
        self.providers = [MemoryStateProvider() for _ in range(3)]
        self.tasks = [self.new_task(i) for i in range(3)]
        self.machine = CheckpointMachine(interval_ms=0)
        self.machine.start()
        self.answered = 0
        self.prepared = {}
        self.number = 0

    def new_task(self, i):
        return StatefulBoltExecutor(Sum(), ["n"], self.providers[i].new_state(f"sum-{i}"))

    def step(self):
        chance = self.rng.random()
        i = self.rng.randrange(3)
        if chance < 0.05:
            self.tasks[i] = self.new_task(i)
        elif chance < 0.1:
            self.machine = CheckpointMachine(self.machine.stored, 0)
            self.machine.start()
            self.answered = 0
        elif chance < 0.5:
            self.number += 1
            self.tasks[i].execute(self.number)
        else:
            self.deliver()

    def deliver(self):
        """Deliver the outstanding message to some tasks, or to all, and answer it."""
        action, txid = self.machine.sent[-1]
        reached = self.tasks if self.rng.random() < 0.8 else self.tasks[: self.rng.randrange(3)]
        answers = [getattr(task, METHODS[action])(txid) for task in reached]
        if len(reached) == 3 and set(answers) == {"acked"}:
            if action == "PREPARE":
                self.prepared[txid] = [list(task.state.get("seen", [])) for task in self.tasks]
            self.machine.ack(txid)
        else:
            self.machine.fail(txid)


METHODS = {"INITSTATE": "init_state", "PREPARE": "prepare", "COMMIT": "commit", "ROLLBACK": "rollback"}


@pytest.mark.parametrize("seed", range(SEED, SEED + SCHEDULES))
def test_all_tasks_are_at_the_same_checkpoint_after_any_crashes(seed):
    world = World(random.Random(seed))
    for _ in range(120):
        world.step()
    world.rng.random = lambda: 0.5  # all tasks are reached
    world.machine = CheckpointMachine(world.machine.stored, 10**9)
    world.tasks = [world.new_task(i) for i in range(3)]
    world.machine.start()
    while world.machine.recovering:
        world.deliver()
    txid, status = world.machine.stored
    assert status == "COMMITTED"
    assert {task.state.last_committed() for task in world.tasks} == {txid if txid >= 0 else None}
    found = [task.state.get("seen", []) for task in world.tasks]
    assert found == world.prepared.get(txid, [[], [], []]), f"SEED={seed}"
