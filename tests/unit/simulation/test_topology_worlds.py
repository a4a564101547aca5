"""Worlds of whole topologies: shipped code on files, under faults, against models of what it must commit."""

import os
import random
import re
from collections import Counter
from concurrent.futures import Future
from dataclasses import replace
from typing import ClassVar

import pytest
from watched import Gathering

from txstorm import Committer
from txstorm.api.state import SinkTable
from txstorm.clients.files import sync_file, write_synced
from txstorm.errors import InputError
from txstorm.simulation import schedule as kinds
from txstorm.simulation import simulate, story, trace
from txstorm.simulation.search import violation
from txstorm.simulation.topologies.counts import CountsWorld
from txstorm.simulation.topologies.disk import Disk
from txstorm.simulation.topologies.kind import WorldKind
from txstorm.simulation.topologies.topology_world import Setting, TopologyWorld, kind_named

KINDS = (
    "counts",
    "windows_world:WindowsWorld",
    "join_world:JoinWorld",
    "stateful_world:StatefulWorld",
    "clocks_world:ClocksWorld",
)
SEED = int(os.environ.get("SEED", "0"))


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_committed_under_faults_is_what_the_model_says(kind):
    found = simulate(8, SEED, kind=kind)
    assert not found.found, story(found.found[0])


def test_everything_befalls_the_worlds():
    counts = simulate(80, SEED, first=140, kind="stateful_world:StatefulWorld").faults
    expected = (
        *(kinds.CRASH, kinds.FAILED, kinds.LOST, kinds.PAUSE, kinds.HANGS, kinds.BATCH, kinds.RIVAL, kinds.STANDBY),
        *(kinds.STOP, kinds.INACTIVE, kinds.REWIND, kinds.POWER, kinds.SAVEPOINT, kinds.AWAY, kinds.REFUSED),
    )
    assert [kind for kind in expected if not counts[kind]] == []


@pytest.mark.parametrize(("kind", "seed", "number"), [("counts", SEED, 3), ("join_world:JoinWorld", 77, 7)])
def test_a_schedule_has_the_same_trace_each_time(kind, seed, number):
    setting = Setting.drawn(kind, seed, number)  # in the second one, compactions came by what they had cost
    assert trace(setting) == trace(setting)


EVERY = [pytest.param(9, id="some"), pytest.param(1, id="all", marks=pytest.mark.long)]


@pytest.mark.parametrize("every", EVERY)
def test_a_first_start_survives_a_power_cut_at_any_step(every):
    for step in range(1 + SEED % every, 220, every):
        setting = replace(Setting.drawn("counts", SEED, step), strikes=((step, kinds.POWER),), turns=1)
        assert violation(TopologyWorld(setting)) is None, setting


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


class WritesLate(Gathering, Committer):
    """Committer that is killed the first time it finishes a batch, and then tries to write in every way."""

    table = SinkTable("out", {"n": int})

    def finish_batch(self):
        world = LateWorld.now
        if not world.counts[kinds.CRASH]:
            world.counts[kinds.CRASH] += 1
            late, future = Late(), Future()
            future.add_done_callback(lambda done: write("callback"))
            try:
                world.killed(world.current())
            except BaseException:  # noqa: BLE001 - as users may write it
                try:
                    write("except")
                finally:
                    future.set_result(None)
            finally:
                del late
                write("finally")
        self.context.sink("out").append(self.taken[-1])


class Late:
    def __del__(self):
        write("del")


def write(name):
    LateWorld.now.counts[name] += 1
    (LateWorld.now.data_dir / name).write_text("too late")


class LateWorld(WorldKind):
    name, outside = "late", True
    streams: ClassVar = {"default": ("n",)}

    def build(self, builder, world):
        LateWorld.now = world
        builder.set_committer_bolt("late", WritesLate()).global_grouping("feed")

    def rows(self, partition):
        return [("default", (1,))]

    def check(self, batches, data_dir):
        arrived = {name for name in ("except", "finally", "callback", "del") if (data_dir / name).exists()}
        return f"{arrived} of a dead process arrived" if arrived else None


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_nothing_that_a_dead_process_does_arrives():
    counts = Counter()
    world = TopologyWorld(replace(Setting.drawn(f"{__name__}:LateWorld", 0, 0), strikes=(), flaky=0), counts)
    assert violation(world) is None
    assert {"except", "finally", "callback", "del"} <= counts.keys()
    assert counts[kinds.REFUSED] >= 4


def test_a_power_cut_takes_any_names_and_contents_that_were_not_synced(tmp_path):
    lost = Counter()
    for seed in range(40):
        place = tmp_path / str(seed)
        place.mkdir()
        disk = Disk(place, lambda what: None)
        with disk.watched():
            write_synced(place / "synced", b"content")
            (place / "torn").write_bytes(b"content")
            sync_file(place)
            (place / "synced").rename(place / "renamed")
            write_synced(place / "new", b"content")
            disk.cut(random.Random(seed).randrange)
            names = {one.name for one in place.iterdir()}
            lost.update({"rename": "synced" in names, "new": "new" not in names})
            lost["torn"] += (place / "torn").read_bytes() != b"content"
            assert ("synced" in names) != ("renamed" in names)
            assert all((place / name).read_bytes() == b"content" for name in names - {"torn"})
    assert all(0 < lost[what] < 40 for what in ("rename", "new")), lost
    assert lost["torn"] > 20
