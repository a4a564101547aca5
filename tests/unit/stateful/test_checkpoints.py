"""The checkpoint machine: what it sends and stores, and what holds for tasks that follow it through crashes."""

import os
import random

import pytest

from txstorm.errors import InputError
from txstorm.stateful import MemoryStateProvider, StatefulBolt
from txstorm.testing import CheckpointMachine, StatefulBoltExecutor

SEED, SCHEDULES = int(os.environ.get("SEED", "0")), int(os.environ.get("SCHEDULES", "300"))


# What is stored and the interval in milliseconds; steps: a call, what it sends, and perhaps what is stored then.
MACHINES = {
    "the first start gives tasks their state, then checkpoints follow": (
        (None, 0),
        "start: INITSTATE -1 = -1 COMMITTED; ack -1: PREPARE 0 = 0 PREPARING; ack 0: COMMIT 0 = 0 COMMITTING; "
        "ack 0: PREPARE 1 = 1 PREPARING",
    ),
    "nothing before the start": ((None, 5000), "ack -1: ; fail -1: ; pass_time 10000: "),
    "checkpoints wait for the interval since the last one": (
        (None, 1000),
        "start: INITSTATE -1; ack -1: ; pass_time 999: ; pass_time 1: PREPARE 0; pass_time 400: ; ack 0: COMMIT 0; "
        "ack 0: ; pass_time 599: ; pass_time 1: PREPARE 1",
    ),
    "a checkpoint due during another step": ((None, 1000), "start: INITSTATE -1; pass_time 1000: ; ack -1: PREPARE 0"),
    "an unprepared checkpoint is rolled back": (
        ((5, "PREPARING"), 0),
        "start: ROLLBACK 5; ack 5: INITSTATE 4 = 4 COMMITTED; ack 4: PREPARE 5",
    ),
    "a commit that has begun is ended": (
        ((5, "COMMITTING"), 0),
        "start: COMMIT 5; ack 5: INITSTATE 5 = 5 COMMITTED; ack 5: PREPARE 6",
    ),
    "a failed prepare": (
        ((4, "COMMITTED"), 0),
        "start: INITSTATE 4; ack 4: PREPARE 5; fail 5: ROLLBACK 5 = 5 PREPARING, recovering",
    ),
    "a failed state": (
        ((4, "COMMITTED"), 0),
        "start: INITSTATE 4; fail 4: INITSTATE 4; fail 4: INITSTATE 4 = 4 COMMITTED",
    ),
    "a failed commit": (((4, "COMMITTING"), 0), "start: COMMIT 4; fail 4: COMMIT 4; fail 4: COMMIT 4 = 4 COMMITTING"),
    "a failed rollback": (
        ((4, "PREPARING"), 0),
        "start: ROLLBACK 4; fail 4: ROLLBACK 4; fail 4: ROLLBACK 4 = 4 PREPARING",
    ),
    "a commit that failed without a recovery": (
        (None, 0),
        "start: INITSTATE -1; ack -1: PREPARE 0; ack 0: COMMIT 0; fail 0: COMMIT 0; ack 0: PREPARE 1",
    ),
    "answers for other txids": (
        ((4, "PREPARING"), 0),
        "start: ROLLBACK 4; ack -1: ; fail -1: ; ack 3: ; fail 3: ; ack 5: ; fail 5: = 4 PREPARING",
    ),
    "answers to nothing": (((4, "COMMITTED"), 1000), "start: INITSTATE 4; ack 4: ; ack 4: ; fail 4: = 4 COMMITTED"),
}


@pytest.mark.parametrize("name", MACHINES)
def test_what_the_machine_sends_and_stores(name):
    """Row W36."""
    start, steps = MACHINES[name]
    machine = CheckpointMachine(*start)
    for step in steps.split(";"):
        (call, _, expected), before = step.partition(":"), len(machine.sent)
        method, *number = call.split()
        getattr(machine, method)(*map(int, number))
        sent, _, then = (part.strip() for part in expected.partition("="))
        assert ", ".join(f"{action} {txid}" for action, txid in machine.sent[before:]) == sent, step
        kept, _, recovering = then.partition(", ")
        assert kept in ("", "{} {}".format(*machine.stored)), step
        assert machine.recovering or not recovering, step


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
