"""Runs by replicas whose replicas are objects of this process: script, commands, held tuples, log, restarts, replays."""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import txstorm
from txstorm.dadstorm.configuration import Configuration, parse
from txstorm.dadstorm.master.network_run import NetworkOptions, NetworkRun
from txstorm.dadstorm.master.replica_topology import replica_topology
from txstorm.dadstorm.operators import load_code
from txstorm.dadstorm.processes.fleet import Answered, Dead, Failed, Silent, Started
from txstorm.dadstorm.values import Fields
from txstorm.errors import InputError, TopologyFailed
from txstorm.operations.lifecycle import ask
from txstorm.replay.audit import replay_txid
from txstorm.results.read import read_sink, read_state
from txstorm.results.views import DeadLettersView
from txstorm.state.collections import TaskCollection

NUMBERS = [str(n) for n in range(1, 13)]


class Objects:
    """Fleet of objects: replicas answer when they get a delivery, or `mute` ones never.

    Attributes:
        made: the fleet of the last run.
        mute: replicas that do not answer from now on.
        dies: replicas that die when they get a delivery.
    """

    made: "Objects"
    mute: frozenset[tuple[str, int]] = frozenset()
    dies: frozenset[tuple[str, int]] = frozenset()

    def __init__(self, configuration: Configuration, tell: Any, settings: Any, lanes: Any) -> None:
        self.codes = {one.id: load_code(one, configuration) for one in configuration.operators}
        self.states: dict[tuple[str, int], str] = {}
        self.tell, self.calls = tell, list[tuple[Any, ...]]()
        Objects.made = self

    def open(self) -> None:
        pass

    def start(self, operator: str, replica: int, interval: int = 0) -> None:
        if self.states.get((operator, replica)) != "live":
            self.states[operator, replica] = "live"
            self.calls.append(("start", operator, replica, interval))
            self.tell(Started(operator, replica, 1))

    def interval(self, operator: str, milliseconds: int) -> None:
        self.calls.append(("interval", operator, milliseconds))

    def kill(self, operator: str, replica: int) -> None:
        self.states[operator, replica] = "dead"
        self.tell(Dead(operator, replica, -9))

    def deliver(self, operator: str, replica: int, number: int, items: Sequence[tuple[str, Fields]]) -> None:
        self.calls.append(("deliver", operator, replica, number))
        if (operator, replica) in self.dies:
            self.kill(operator, replica)
        if (operator, replica) in self.mute or self.states[operator, replica] != "live":
            return
        answers = []
        for id, fields in items:
            try:
                answers.append((id, self.codes[operator](fields)))
            except Exception as error:  # noqa: BLE001
                self.tell(Failed(operator, replica, number, id, f"{operator}: {error!r}"))
        self.tell(Answered(operator, replica, number, answers, 0))

    def withdraw(self, operator: str, replica: int, number: int) -> None:
        self.calls.append(("withdraw", operator, replica, number))

    def state(self, operator: str, replica: int) -> str:
        return self.states.get((operator, replica), "absent")

    def pid(self, operator: str, replica: int) -> int:
        return 1

    def close(self) -> None:
        self.states.clear()


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Objects, "mute", frozenset())
    monkeypatch.setattr(Objects, "dies", frozenset())


class Case:
    """A directory with numbers.data and a network OP1 (DUP, two replicas) → OP2 (COUNT), run with scripts."""

    def __init__(self, place: Path) -> None:
        self.place, self.data = place, place / "data"
        (place / "numbers.data").write_text("\n".join(NUMBERS) + "\n")

    def configuration(self, script: str, head: str = "LoggingLevel full", first: str = "DUP") -> Configuration:
        one = "input_ops numbers.data rep_fact 2 routing primary address tcp://h:1/a, tcp://h:2/a operator_spec"
        two = "OP2 input_ops OP1 rep_fact 1 routing primary address tcp://h:3/a operator_spec COUNT"
        return parse(f"{head}\nOP1 {one} {first}\n{two}\n{script}", directory=self.place)

    def start(self, script: str, *, stay: bool = False, head: str = "LoggingLevel full", **more: Any) -> Any:
        settings, first = more.pop("settings", {}), more.pop("first", "DUP")
        options = NetworkOptions(make_fleet=Objects, stay=stay, **more)
        configuration = self.configuration(script.replace(";", "\n"), head, first)
        topology, self.run = replica_topology(configuration, options, "numbers", settings)
        return txstorm.run(topology, engine="local", data_dir=self.data, available_now=not stay)

    def through(self, script: str, **options: Any) -> dict[str, Any]:
        """Run to the end; return the result."""
        self.start(script, **options).awaitTermination()
        return self.run.result()

    def output(self, operator: str = "OP2") -> list[str]:
        rows = read_sink(self.data, f"{operator}_emitted").to_pylist()
        return [",".join(row["fields"]) for row in rows]

    def log(self, *events: str) -> list[str]:
        lines = (self.data / "dadstorm.log").read_text().splitlines()
        return [one["text"] for one in map(json.loads, lines) if one["event"] in events]

    def ask(self, line: str) -> Any:
        return ask(self.data, "dadstorm.command", {"line": line})


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


def until(condition: Any) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


START = "Start OP1;Start OP2"


def test_a_script_is_carried_out_and_logged_and_the_run_ends(case: Case) -> None:
    done = case.through(f"Status;{START};Interval OP2 0;Wait 1;Crash OP1 7".replace(";Crash OP1 7", ""))
    assert case.output() == NUMBERS
    assert done["operators"]["OP1"] == {"received": 12, "processed": 12, "emitted": 12}
    assert (done["lost"], done["repeated"], done["held"]) == (0, 0, {})
    assert case.log("command") == ["Status", "Start OP1", "Start OP2", "Interval OP2 0", "Wait 1"]
    assert case.log("status") == ["OP1-0: not started", "OP1-1: not started", "OP2-0: not started"]
    assert case.log("tuple")[-1] == "tuple tcp://h:3/a 12"
    assert case.log("end") == ["the run has ended; 0 held tuples"]


@pytest.mark.parametrize(
    ("script", "reason", "where", "brings_back"),
    [
        ("Start OP1", "not started", "-1", "Start OP2"),
        (f"{START};Freeze OP2 0", "frozen", "0", "Unfreeze OP2 0"),
        (f"{START};Crash OP2 0", "no live replica", "-1", "Start OP2"),
    ],
)
def test_held_tuples_survive_the_run_for_each_reason(
    case: Case, script: str, reason: str, where: str, brings_back: str
) -> None:
    assert case.through(script)["held"] == {"OP2": {where: 12}}
    held = read_state(case.data, "held").to_pylist()
    assert [(row["reason"], row["fields"]) for row in held] == [(reason, [n]) for n in NUMBERS]
    assert case.through(script)["held"] == {"OP2": {where: 12}}  # nothing moves
    assert case.through(f"{script};{brings_back}")["held"] == {}
    assert case.output() == NUMBERS
    assert not read_state(case.data, "held").num_rows


def test_held_tuples_that_went_on_are_not_looked_at_again(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    case.through(f"{START};Freeze OP2 0")
    scan, begun = TaskCollection.scan, list[int]()

    def noted(self: Any, key: Any, start: int, **limits: Any) -> Any:
        begun.append(start)
        return scan(self, key, start, **limits)

    monkeypatch.setattr(TaskCollection, "scan", noted)
    case.through(f"{START};Freeze OP2 0;Unfreeze OP2 0", max_batch_rows=4)
    assert len(begun) == 3 and begun == sorted(set(begun))
    assert case.output() == NUMBERS


def test_an_interval_limits_what_a_transaction_reads(case: Case) -> None:
    case.through(f"Interval OP1 250;{START}")
    ids = [row["id"] for row in read_sink(case.data, "OP1_emitted").to_pylist()]
    assert ids[:6] == ["OP1-0-1.1", "OP1-0-1.2", "OP1-1-1.1", "OP1-1-1.2", "OP1-0-2.1", "OP1-0-2.2"]
    assert case.output() == NUMBERS
    assert ("interval", "OP1", 250) in Objects.made.calls


@pytest.mark.parametrize("semantics", ["at-most-once", "at-least-once", "exactly-once"])
def test_the_three_semantics_when_a_replica_dies(case: Case, semantics: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Objects, "dies", frozenset({("OP1", 1)}))
    done = case.through(START, head=f"Semantics {semantics}\nLoggingLevel full")
    lost = semantics == "at-most-once"
    assert case.output("OP1") == NUMBERS[: 6 if lost else 12]
    assert done["lost"] == (6 if lost else 0)
    assert [row["id"] for row in read_sink(case.data, "lost").to_pylist()] == [
        f"numbers.data:{n}" for n in NUMBERS[6:] if lost
    ]
    assert case.log("crash") == ["OP1-1 is dead: killed by signal 9"]
    assert case.log("resend") == ([] if lost else ["6 tuples sent again to OP1-0"])
    assert len(case.log("lost")) == done["lost"]
    assert [one["state"] for one in case.run.replicas.__self__._last] == ["working", "crashed", "working"]  # type: ignore[attr-defined]


def test_conditions_and_the_place_in_the_script_survive(case: Case) -> None:
    case.through(f"{START};Crash OP1 1;Freeze OP2 0;Interval OP1 500")
    assert Objects.made.state("OP1", 1) == "absent"
    case.through(f"{START};Crash OP1 1;Freeze OP2 0;Interval OP1 500;Unfreeze OP2 0;Status")
    assert [one for one in Objects.made.calls if one[0] == "start"] == [
        ("start", "OP1", 0, 500),
        ("start", "OP2", 0, 0),
    ]
    assert case.log("command")[-2:] == ["Unfreeze OP2 0", "Status"]
    assert case.log("status")[-3:] == ["OP1-0: working", "OP1-1: crashed", "OP2-0: working"]
    assert case.output() == NUMBERS


def test_commands_of_another_process_take_effect_and_refusals_are_told_and_logged(case: Case) -> None:
    handle = case.start(f"{START};Freeze OP2 0", stay=True)
    until(lambda: case.run.held == {("OP2", 0): 12})
    with pytest.raises(InputError, match="Freeze OP2 0 is refused: it is frozen already"):
        case.ask("Freeze OP2 0")
    for wrong in ("Freeze OP3 0", "Crash OP1 8", "Melt OP1", "Start OP1 Start OP2"):
        with pytest.raises(InputError):
            case.ask(wrong)
    states = [one["state"] for one in case.ask("Status")["replicas"]]
    assert states == ["working", "working", "frozen"]
    assert case.ask("unfreeze OP2 0") == {"command": "Unfreeze OP2 0"}
    until(lambda: not case.run.held and case.run.committed_txid == 2)
    handle.stop()
    assert case.output() == NUMBERS
    assert case.log("refused") == ["Freeze OP2 0: it is frozen already"]


def test_freezing_and_stopping_in_the_middle_of_a_transaction(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Objects, "mute", frozenset({("OP1", 1), ("OP2", 0)}))
    handle = case.start(START, stay=True)
    until(lambda: ("OP1", 1) in case.run.pending)
    case.ask("Freeze OP1 1")
    until(lambda: case.run.pending.get(("OP2", 0)) == 6)
    began = time.monotonic()
    handle.stop()
    assert time.monotonic() - began < 5  # and not after the time in which a commit thread is given up
    monkeypatch.setattr(Objects, "mute", frozenset())
    assert case.through(START)["held"] == {"OP1": {"1": 6}}
    case.through(f"{START};Unfreeze OP1 1")
    assert case.output() == NUMBERS


def test_a_silent_replica_is_given_up(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Objects, "mute", frozenset({("OP1", 1)}))
    handle = case.start(START, stay=True)
    until(lambda: ("OP1", 1) in case.run.pending)
    Objects.made.tell(Silent("OP1", 1))
    until(lambda: case.run.committed_txid == 1)
    handle.stop()
    assert case.output() == NUMBERS
    assert case.log("crash") == ["OP1-1 is silent, and is given up"]


def test_each_step_carries_out_one_command(case: Case) -> None:
    handle = case.start(START, step=True)
    for number in range(3):
        until(lambda: case.run.conditions.position == number)  # noqa: B023
        case.run.step()
    handle.awaitTermination()
    assert case.output() == NUMBERS


def test_another_configuration_is_refused_unless_only_its_commands_differ(case: Case) -> None:
    case.through("Start OP1")
    with pytest.raises(InputError, match=r"OP1: params was \[\], and is \['1'\]; OP1: type was DUP, and is UNIQ;"):
        case.through("Start OP1", first="UNIQ 1")
    case.through(f"Interval OP1 0;{START}")  # from its beginning
    assert case.output() == NUMBERS


def test_code_that_raises_ends_the_run_or_makes_dead_letters(case: Case) -> None:
    (case.place / "odd.py").write_text(
        "class Odd:\n    def run(self, fields):\n        assert fields != ['5'], 'five'\n        return [fields]\n"
    )
    with pytest.raises(TopologyFailed, match="OP1: AssertionError"):
        case.through(START, first="CUSTOM odd,Odd,run")
    case.through(START, first="CUSTOM odd,Odd,run", settings={"on_error": "dead_letter"})
    assert case.output("OP1") == [n for n in NUMBERS if n != "5"]
    (letter,) = DeadLettersView(case.data).to_pylist()
    assert json.loads(letter["record"]) == {"operator": "OP1", "id": "numbers.data:5", "fields": ["5"]}


def test_a_replay_runs_the_operators_in_its_own_process(case: Case) -> None:
    case.through(START)
    topology, _ = replica_topology(case.configuration("Start OP1"), id="numbers")
    verdict = replay_txid(topology, case.data, 1)
    assert verdict.equal, verdict.to_json()


def test_a_replay_of_what_was_held_or_went_on_says_so_instead_of_comparing(case: Case) -> None:
    case.through("Start OP1")
    case.through(START)
    topology, _ = replica_topology(case.configuration("Start OP1"), id="numbers")
    told = [replay_txid(topology, case.data, txid) for txid in (1, 2)]
    assert [one.not_compared for one in told] == [
        "of its tuples 12 held",
        "of its tuples some went on that had been held",
    ]
    assert all(one.equal and not one.tables and "not_compared" in one.to_json() for one in told)


def test_lines_that_are_appended_are_read(case: Case) -> None:
    handle = case.start(START, stay=True)
    until(lambda: case.run.committed_txid == 1)
    with (case.place / "numbers.data").open("a") as file:
        file.write("13\n% comment\n14\n")
    until(lambda: case.run.committed_txid == 2)
    handle.stop()
    assert case.output("OP1") == [*NUMBERS, "13", "14"]


def test_a_run_is_one_object_in_its_process(case: Case) -> None:
    import pickle

    run = NetworkRun(case.configuration(""), NetworkOptions())
    assert pickle.loads(pickle.dumps(run)) is run
