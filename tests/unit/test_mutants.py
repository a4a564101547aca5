"""The runner of mutants: which code it changes, in which processes, and what counts as killed."""

import ast
import json
import os
import re
import subprocess
import sys

import pytest

from scripts._mutants import worlds
from scripts._mutants.__main__ import KILLERS
from scripts._mutants.defects import mutants
from scripts._mutants.mutation import ROOT, Functions, Mutant, mutated, plant
from scripts._mutants.trial import KILLED, SURVIVES, UNREACHED, Outcome, Trials, in_fork
from txstorm.errors import MetadataError, TopologyFailed
from txstorm.simulation import drawn
from txstorm.spouts.user_calls import calling, partition_count
from txstorm.storage.tables.table_log import TransactionalTable
from txstorm.windows import buffer
from txstorm.windows.rules.firing import behind

NO_DEFECT = Mutant("m", "_sync", "size = _due(state)", "size = _due(state)")
GROUPS = mutants()["naive_group_commit"]


def tried(mutant, killer=None, schedules=30):
    return Trials({}, {mutant.name: killer} if killer else {}, schedules, 0).tried(mutant)


def planted(mutant, check):
    """Return what `check(reached)` returns in a fork with changed code."""
    functions = Functions()
    outcome = in_fork(lambda: Outcome(KILLED, repr(check(plant(mutated(mutant, ROOT / "txstorm"), functions)))))
    return outcome.what


def test_each_mutant_changes_existing_code_exactly_once():
    lost = []
    for mutant in mutants().values():
        try:
            mutated(mutant, ROOT / "txstorm")
            assert ast.dump(ast.parse(mutant.old)) != ast.dump(ast.parse(mutant.new)), mutant.name
        except LookupError as error:
            lost.append(str(error))
    assert lost == []


def test_a_hundred_mutants_have_killers_in_the_fast_suite_without_processes_jvm_or_server():
    killers = json.loads(KILLERS.read_text("utf-8"))
    assert killers.keys() <= mutants().keys()
    assert sum(not {"copy", "processes"} & one.keys() for one in killers.values()) >= 100
    rooms = re.compile("tests/unit/(joins|monoids|spouts|stateful|windows)/")  # enough to load
    some = [name for name, one in killers.items() if rooms.match(one.get("test", ""))]
    command = [sys.executable, "-m", "scripts._mutants", "--killers", *some]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    last = made.stdout.splitlines()[-1]
    count = re.fullmatch(r"(\d+) of \d+ are killed by a test of scripts/test --fast", last)
    assert count is not None, last
    assert int(count[1]) >= 100


def test_mutants_apply_after_renaming_and_reformatting_of_files(tmp_path):
    mutant = Mutant("m", "Log.commit", "self.check(epoch)", "self.check(0)")
    code = "class Log:\n    def commit(self, epoch):\n        return [self.check(  # why\n            epoch)]\n"
    (tmp_path / "one" / "moved").mkdir(parents=True)
    (tmp_path / "one" / "moved" / "renamed.py").write_text(code)
    change = mutated(mutant, tmp_path / "one")
    assert change.module.name == "renamed.py"
    assert "self.check(0)" in change.text(tmp_path / "trace")
    (tmp_path / "two").mkdir()
    for name in ("a.py", "b.py"):
        (tmp_path / "two" / name).write_text(code)
    with pytest.raises(LookupError, match="found it 2x"):
        mutated(mutant, tmp_path / "two")


def test_functions_and_constants_are_changed_wherever_they_were_imported_and_behind_a_decorator():
    def check(reached):
        before = list(reached)
        with pytest.raises(MetadataError):
            partition_count(3, "spout")
        return before, reached

    assert planted(Mutant("m", "partition_count", "count < 0", "True"), check) == "([], [True])"
    assert partition_count(3, "spout") == 3

    def check(reached):
        with pytest.raises(TopologyFailed, match="changed"), calling("spout", "call"):
            raise ValueError
        return reached

    raised = "TopologyFailed(f'spout {spout!r}: {call} raised {type(error).__name__}: {error}')"
    assert planted(Mutant("m", "calling", raised, "TopologyFailed('changed')"), check) == "[True]"

    def check(reached):
        before = list(reached)
        return buffer.ARRIVAL_BITS, behind(1, 0).arrival, before, reached

    assert planted(Mutant("m", "ARRIVAL_BITS", "24", "25"), check) == f"(25, {1 << 25}, [], [True])"


def test_a_mutant_is_killed_by_its_record_or_else_by_a_search():
    found = tried(GROUPS)
    assert (found.verdict, list(found.killer)) == (KILLED, ["schedule"])
    assert tried(GROUPS, found.killer, schedules=1) == found
    assert tried(GROUPS, {"schedule": {"of": "another version"}}) == found
    assert tried(GROUPS, {"schedule": drawn(0, 0).to_json()}).verdict == KILLED


def test_code_that_is_not_executed_kills_nothing(monkeypatch):
    monkeypatch.setattr(TransactionalTable, "_check_epoch", lambda table, epoch: table.epoch())
    unused = Mutant("m", "parsed_time", "time = None", "time = 0")
    trials = Trials({}, {}, 2000, 0)
    outcome = in_fork(lambda: trials._searched(unused, worlds.searched))
    assert (outcome.verdict, outcome.what[: len(UNREACHED)]) == (SURVIVES, UNREACHED)


def test_a_survivor_is_tried_again_in_a_changed_copy(tmp_path):
    test = tmp_path / "test_stored.py"
    test.write_text(
        "from txstorm.windows.rules.forms import WindowForm\n\n"
        "def test_stored():\n    assert WindowForm.STORED == 'function'\n"
    )
    outcome = tried(Mutant("m", "WindowForm", "'function'", "'method'", str(test)))
    assert (outcome.verdict, outcome.killer["copy"]) == (KILLED, True)
    assert tried(NO_DEFECT, schedules=1).verdict == SURVIVES


def test_the_command_reports_a_mutant_whose_test_needs_a_missing_server_as_not_tried(tmp_path):
    command = [sys.executable, "-m", "scripts._mutants", "a_stale_epoch_prepares_and_commits_in_redis", GROUPS.name]
    environment = {**os.environ, "PATH": str(tmp_path)}
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=environment)
    first, second, *_, last = made.stdout.splitlines()
    assert "not tried" in first
    assert "redis-server" in first
    assert "schedule" in second
    assert (made.returncode, last) == (0, "killed 1 of 2, 1 not tried")


def test_the_command_names_an_unknown_mutant():
    command = [sys.executable, "-m", "scripts._mutants", "no_such_mutant"]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (made.returncode, made.stdout) == (2, "")
    assert "error: no mutant 'no_such_mutant'; there are " in made.stderr
