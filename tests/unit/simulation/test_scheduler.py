"""Scheduler of simulated worlds: lanes, waits, time, locks, and processes that are dead for good."""

import gc
import random
from contextlib import suppress

import pytest

from txstorm.simulation.process.scheduler import Killed, Owner, Scheduler, SimLanes


class Process(Owner):
    """A process that takes steps at a seam, and leaves traces of the steps that it was allowed to take."""

    def __init__(self, scheduler):
        self.scheduler, self.tried, self.made = scheduler, [], []
        self.lanes = SimLanes(scheduler, self, lambda: 0)

    def step(self, what):
        self.tried.append(what)
        self.scheduler.step(self)
        self.made.append(what)


@pytest.fixture
def refused():
    return []


@pytest.fixture
def process(refused):
    return Process(Scheduler(random.Random(3).random, refused.append))


def test_a_dead_process_changes_nothing_whatever_its_code_still_tries(process, refused):
    """Code in `finally`, in handlers of every exception, in callbacks of futures and in destructors."""
    scheduler, lanes = process.scheduler, process.lanes

    class Leaves:
        def __del__(self):
            with suppress(Killed):  # otherwise Python prints what a destructor raises
                process.step("destructor")

    def committer():
        leaves = Leaves()
        try:
            process.step("begins")
            lanes.sleep(100)
            process.step("goes on")
        except BaseException:
            process.step("handler")
            raise
        finally:
            process.step("finally")
            del leaves

    done = lanes.call(committer, "commit")
    done.add_done_callback(lambda _: process.step("callback"))
    scheduler.run(10, jumps=0)
    assert process.made == ["begins"]
    scheduler.kill(process)
    scheduler.run(10, jumps=5)
    assert process.made == ["begins"]
    del done  # with the error of the committer, which keeps its variables
    gc.collect()
    assert process.tried == ["begins", "handler", "finally", "callback", "destructor"]
    assert len(refused) == 4
    lanes.start(lambda: process.step("later"), "later")
    assert not scheduler.run(10, jumps=5)
    assert process.made == ["begins"]


def test_a_process_that_dies_in_the_middle_of_its_own_step_ends_there(process):
    scheduler = process.scheduler

    def dies():
        process.step("first")
        scheduler.kill(process)
        process.step("second")

    process.lanes.start(dies, "driver")
    process.lanes.start(lambda: process.step("other"), "other")
    scheduler.run(10)
    assert "second" not in process.made


def test_lanes_take_turns_in_an_order_that_only_the_seed_decides(refused):
    def order(seed):
        one = Process(Scheduler(random.Random(seed).random, refused.append))
        for lane in "ab":
            one.lanes.start(lambda lane=lane: [one.step(f"{lane}{at}") for at in range(20)], lane)
        one.scheduler.run(1000)
        return one.made

    orders = {tuple(order(seed)) for seed in range(20)}
    assert order(4) == order(4)
    assert len(orders) > 10
    assert all([step for step in one if step[0] == "a"] == [f"a{at}" for at in range(20)] for one in orders)


def test_time_passes_only_while_no_lane_can_run(process):
    lanes, scheduler = process.lanes, process.scheduler

    def waits():
        process.step(lanes.monotonic())
        lanes.sleep(5)
        process.step(lanes.monotonic())
        assert not lanes.event().wait(2)
        process.step(lanes.monotonic())

    lanes.start(waits, "waits")
    scheduler.run(100, jumps=0)
    assert process.made == [0.0]
    scheduler.run(100, jumps=10)
    assert process.made == [0.0, 5.0, 7.0]


def test_a_lock_excludes_other_lanes_even_if_its_holder_passes_control_on(process):
    lanes, lock = process.lanes, process.lanes.lock()

    def works(name):
        for _ in range(3):
            with lock, lock:
                process.step(f"{name} in")
                lanes.sleep(1)
                process.step(f"{name} out")

    for name in "abc":
        lanes.start(lambda name=name: works(name), name)
    process.scheduler.run(1000, jumps=100)
    pairs = list(zip(process.made[::2], process.made[1::2], strict=True))
    assert len(pairs) == 9
    assert all(begin == f"{end[0]} in" for begin, end in pairs)


def test_calls_of_a_lane_keep_their_order_and_an_abandoned_lane_gives_back_what_it_has_not_begun(process):
    lanes = process.lanes
    lane = lanes.lane("txstorm-commit")
    first = lane.submit(lambda: lanes.sleep(1e9))
    waiting = [lane.submit(lambda at=at: process.step(at)) for at in range(3)]
    process.scheduler.run(10, jumps=0)
    other = lanes.lane("txstorm-commit")
    for call in lane.leave():
        other.queue(call)
    process.scheduler.run(10, jumps=0)
    assert process.made == [0, 1, 2]
    assert all(one.done() for one in waiting)
    assert not first.done()


def test_a_defect_of_a_lane_ends_the_world(process):
    def fails():
        raise ZeroDivisionError

    process.lanes.start(fails, "fails")
    with pytest.raises(ZeroDivisionError):
        process.scheduler.run(10)
    with pytest.raises(RuntimeError, match="hub"):
        process.lanes.sleep(1)
    process.dead = True
    with pytest.raises(Killed):
        process.scheduler.step(process)
