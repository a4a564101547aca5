"""Random simulation: no schedule violates an invariant, defects are found, and a seed reproduces everything.

TXSTORM_SIMULATION_SEED and TXSTORM_SIMULATION_SCHEDULES override the default seed and number of schedules;
`scripts/test` runs many more schedules in parallel with the tests.
"""

import hashlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from txstorm.cli.main import execute
from txstorm.errors import FencedError
from txstorm.simulation import KINDS, Schedule, Strike, drawn, shrunk, simulate, story, trace
from txstorm.simulation.delta.tables import Stored
from txstorm.simulation.schedule import STRIKES
from txstorm.simulation.search import violation
from txstorm.simulation.trouble import rewind
from txstorm.simulation.world import World
from txstorm.storage.tables.identity import TableRef
from txstorm.storage.tables.intent import CHANGES, SINK, STATE
from txstorm.storage.tables.table_log import TransactionalTable

ROOT = Path(__file__).resolve().parents[3]
SEED = int(os.environ.get("TXSTORM_SIMULATION_SEED", "0"))
SCHEDULES = int(os.environ.get("TXSTORM_SIMULATION_SCHEDULES", "500"))
DIGEST = """
import hashlib
from txstorm.simulation import drawn, trace
lines = [line for index in range(20) for line in trace(drawn(7, index))]
print(hashlib.sha256("\\n".join(lines).encode()).hexdigest())
"""


@pytest.fixture
def no_epoch_check(monkeypatch):
    """Defect: tables accept commits of fenced coordinators."""
    monkeypatch.setattr(TransactionalTable, "_check_epoch", lambda table, epoch: table.epoch())


def test_random_schedules_keep_every_invariant_under_every_fault():
    print(f"seed {SEED}, {SCHEDULES} schedules")
    report = simulate(SCHEDULES, SEED)
    assert [story(found) for found in report.found[:1]] == []
    assert report.steps >= 60 * report.schedules
    assert [kind for kind in KINDS if not report.faults[kind]] == []


@pytest.mark.parametrize(("seed", "index"), [(15234, 11325), (771, 22762), (40923, 91387), (88002, 49352)])
def test_schedules_that_once_violated_an_invariant_keep_it(seed, index):
    """In all of these, a coordinator was fenced while it was about to create a table, and created it nevertheless."""
    assert violation(World(drawn(seed, index))) is None


@pytest.mark.parametrize(("kinds", "later"), [((SINK,), 0), ((CHANGES, STATE), 0), ((CHANGES, STATE), 1)])
def test_an_empty_table_that_a_fenced_coordinator_creates_after_a_rewind_is_taken_over(kinds, later):
    """The coordinator sleeps between the ledger's answer that it leads and the creation of the table number `later`."""
    world = World(replace(drawn(3, 17), tables=1, turns=1, trouble=0, flaky=0, external=False, strikes=()))
    world.run()
    old, refs = world.code, [TableRef(kind, "new") for kind in kinds]
    for ref in refs:
        world.tables[ref.uri] = Stored(ref, 9)
    world.code = (*old, *(ref.uri for ref in refs))
    left, late = refs[later].uri, []

    def meanwhile():
        new, world.code = world.code, old
        rewind(world)
        commits(world)
        world.code = new
        late[0].frozen = 0

    def sleep(process, uri):
        if uri == left and not late:
            late.append(process)
            process.frozen = 1 << 60
            world.acts(meanwhile)

    world.creates = sleep
    fenced = world.start()
    assert world.lets_run(5000, lambda: fenced not in world.processes, jumps=50)
    assert (late, len(world.tables[left].versions)) == ([fenced], 1)
    assert world.judge.timeline == 1
    world.more()
    commits(world)
    assert world.tables[left].versions[-1].apps[world.judge.txid_app(world.tables[left])] > 0


def commits(world):
    """Start a coordinator that commits what there is, with the code that the world has now."""
    assert world.lets_run(5000, world.started().is_done, jumps=50)


@pytest.mark.parametrize("kind", dict.fromkeys(STRIKES))
@pytest.mark.parametrize("by_spark", [False, True])
def test_a_fault_at_every_single_step_of_a_run_is_survived(kind, by_spark):
    usual = replace(drawn(3, 17), tables=2, partitions=2, turns=3, trouble=0, flaky=0, external=False, strikes=())
    usual = replace(usual, spark=by_spark)
    world = World(usual)
    world.run()
    assert world.steps > 60
    for step in range(1, world.steps + 1):
        struck = World(replace(usual, strikes=(Strike(step, kind),)))
        struck.run()
        assert struck.counts[kind] <= 1


def test_the_trace_of_a_schedule_does_not_depend_on_the_hash_seed():
    lines = [line for index in range(20) for line in trace(drawn(7, index))]
    expected = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    environment = {**os.environ, "PYTHONHASHSEED": "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"}
    command = [sys.executable, "-c", DIGEST]
    made = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, cwd=ROOT)
    assert made.stdout.strip() == expected


def test_the_report_does_not_depend_on_the_number_of_processes():
    one, two = (simulate(41, 9, processes) for processes in (1, 2))
    assert replace(one, cpu_seconds=0) == replace(two, cpu_seconds=0)
    later = simulate(11, 9, first=30)
    assert simulate(30, 9).steps + later.steps == one.steps


def _size(schedule):
    knobs = schedule.tables, schedule.partitions, schedule.depth, schedule.group, schedule.turns
    return sum(knobs) + schedule.trouble + schedule.flaky + len(schedule.strikes)


def test_a_violation_is_shrunk_and_shown_step_by_step(no_epoch_check):
    (found,) = simulate(2000, SEED, stop_at=1).found
    small = shrunk(found)
    assert small.what.startswith("invariant 5: ")
    assert _size(small.schedule) < _size(found.schedule)
    assert shrunk(small) == small
    told = story(found).splitlines()
    assert told[0] == f"seed {SEED}, schedule {found.schedule.index}: {found.what}"
    assert told[-1].strip() == f"-- VIOLATION of {small.what}"
    assert any(" table commit " in line for line in told)
    assert story(found).splitlines() == told


def test_a_leader_fenced_without_cause_is_a_violation(monkeypatch):
    def fenced(table, epoch):
        raise FencedError("nobody has taken over")

    monkeypatch.setattr(TransactionalTable, "_check_epoch", fenced)
    (found,) = simulate(5, SEED, stop_at=1).found
    assert found.what.startswith("invariant 7: c1 leads and its run ends with FencedError: nobody has taken over")


def test_the_command_prints_one_json_line_of_integers(capsys):
    assert execute(["simulate", "--schedules", "40", "--seed", "4", "--json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert {"schedules", "seed", "violations", "steps_per_s", "faults"} <= found.keys()
    assert (found["schedules"], found["seed"], found["violations"]) == (40, 4, 0)
    assert {type(one) for one in [*found["faults"].values(), found["steps_per_s"]]} == {int}
    assert list(found["faults"]) == list(KINDS)


def test_the_command_reports_violations_and_exits_with_1(capsys, no_epoch_check):
    assert execute(["simulate", "--schedules", "100", "--seed", str(SEED)]) == 1
    printed = capsys.readouterr()
    assert "invariant 5" in printed.err
    assert "violations: 0" not in printed.out


@pytest.mark.parametrize("option", ["--schedules=0", "--seed=-1", "--processes=0", "--first=-1", "--exhaustive=4"])
def test_numbers_out_of_range_are_rejected(option, capsys):
    assert execute(["simulate", "--schedules", "2", option]) == 2
    assert option.removeprefix("--").partition("=")[0] in capsys.readouterr().err


def test_a_schedule_comes_back_from_its_json():
    for index in range(50):
        schedule = drawn(3, index)
        assert Schedule.from_json(json.loads(json.dumps(schedule.to_json()))) == schedule
    with pytest.raises(TypeError):
        Schedule.from_json({**schedule.to_json(), "of_an_earlier_version": 1})
