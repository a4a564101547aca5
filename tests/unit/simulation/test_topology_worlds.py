"""Worlds of whole topologies: shipped code on files, under faults, against models of what it must commit."""

import os
import random
import re
from collections import Counter

import pytest

from txstorm import BatchBolt, Committer, InputError
from txstorm.api.state import SinkTable
from txstorm.simulation import simulate, story
from txstorm.simulation import schedule as kinds
from txstorm.simulation.search import trace, violation
from txstorm.simulation.topologies.counts import CountsWorld
from txstorm.simulation.topologies.disk import Disk
from txstorm.simulation.topologies.events import crash
from txstorm.simulation.topologies.kind import WorldKind
from txstorm.simulation.topologies.named import kind_named
from txstorm.simulation.topologies.world import Setting, TopologyWorld

KINDS = ("counts", "windows_world:WindowsWorld", "join_world:JoinWorld", "stateful_world:StatefulWorld")
SEED = int(os.environ.get("SEED", "0"))


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_committed_under_faults_is_what_the_model_says(kind):
    found = simulate(8, SEED, kind=kind)
    assert not found.found, story(found.found[0])


def test_everything_befalls_the_worlds():
    counts = simulate(150, SEED, kind="stateful_world:StatefulWorld").faults
    expected = (
        *(kinds.CRASH, kinds.FAILED, kinds.LOST, kinds.PAUSE, kinds.HANGS, kinds.BATCH, kinds.RIVAL, kinds.STANDBY),
        *(kinds.STOP, kinds.INACTIVE, kinds.REWIND, kinds.POWER, kinds.SAVEPOINT, kinds.AWAY, kinds.REFUSED),
    )
    assert [kind for kind in expected if not counts[kind]] == []


def test_a_schedule_has_the_same_trace_each_time():
    setting = Setting.drawn("counts", SEED, 3)
    assert trace(setting) == trace(setting)


class Miscounted(CountsWorld):
    def check(self, batches, data_dir):
        return super().check(batches[:-1], data_dir)


def test_a_difference_from_the_model_is_told_with_the_steps_that_lead_to_it():
    found = simulate(1, SEED, kind=f"{__name__}:Miscounted").found
    assert re.search(r"invariant 1: \w+ has .*, not ", found[0].what)
    assert "p7.1.written" in story(found[0])


@pytest.mark.parametrize("name", ["", "worlds", "counts:", "no_such_module:World", f"{__name__}:SEED", "json:dumps"])
def test_an_unknown_kind_is_refused(name):
    with pytest.raises(InputError, match=r"^kind .*: expected "):
        kind_named(name)


class WritesLate(BatchBolt, Committer):
    """Committer that is killed in `finish_batch`, and tries to write in every way that Python has when it ends."""

    table = SinkTable("out", {"n": int})
    place = None

    def prepare(self, context, collector, attempt):
        self.attempts = 0

    def execute(self, tuple):
        pass

    def finish_batch(self):
        late = Late()
        try:
            KilledWorld.now.dies()
        except BaseException:
            write("except")
            raise
        finally:
            write("finally")
            late.call()


class Late:
    def call(self):
        future = Future()
        future.add_done_callback(lambda done: write("callback"))
        future.set_result(None)

    def __del__(self):
        write("del")


def write(name):
    (KilledWorld.now.data_dir / name).write_text("too late")
