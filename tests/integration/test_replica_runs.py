"""Networks by real replica processes: reach, a killed master, a standby, a second master; no process is left behind."""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from commands import ROOT
from programs import Program, loaded

from txstorm.cli.main import execute
from txstorm.errors import TxstormError
from txstorm.operations.lifecycle import ask
from txstorm.operations.status import read_status
from txstorm.results.read import read_sink
from txstorm.results.views import committed_txid

pytestmark = pytest.mark.integration
NETWORK = """
OP1 input_ops numbers.data rep_fact 2 routing random address tcp://localhost:1/a, tcp://localhost:2/a operator_spec DUP
OP2 input_ops OP1 rep_fact 1 routing primary address tcp://localhost:3/a operator_spec COUNT
Start OP1
Start OP2
Freeze OP2 0
"""
NUMBERS = [str(number) for number in range(1, 101)]


def until(condition: Callable[[], Any]) -> Any:
    end = time.monotonic() + 120
    while True:
        with suppress(TxstormError, KeyError, TypeError):  # no status yet
            if found := condition():
                return found
        assert time.monotonic() < end
        time.sleep(0.05)


class Masters:
    """Runs of a network, each a program of its own, and the replicas that they have had."""

    def __init__(self, place: Path) -> None:
        self.place, self.data = place, place / "data"
        (place / "net.cfg").write_text(NETWORK)
        (place / "numbers.data").write_text("\n".join(NUMBERS))
        self.programs: list[Program] = []
        self.pids: set[int] = set()

    def start(self, *options: str) -> Program:
        command = ["-m", "txstorm", "dadstorm", "run", str(self.place / "net.cfg"), "--data-dir", str(self.data)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self.programs.append(loaded().start(*command, "--local", "--stay", "--json", *options, env=environment))
        return self.programs[-1]

    def held(self, program: Program) -> list[dict[str, Any]]:
        """Return the replicas of a run, once it holds all numbers before OP2 and all its processes work."""

        def found() -> list[dict[str, Any]] | None:
            assert program.poll() is None, program.complained
            status = read_status(self.data)
            replicas = status["dadstorm"]["replicas"]
            works = [one["state"] for one in replicas if one["pid"]] == ["working", "working", "frozen"]
            return replicas if works and replicas[2]["held"] == 100 and status["pid"] == program.pid else None

        replicas: list[dict[str, Any]] = until(found)
        self.pids |= {one["pid"] for one in replicas}
        assert all(map(lives, (one["pid"] for one in replicas))), replicas
        return replicas

    def end(self) -> None:
        for program in self.programs:
            program.kill()
            program.wait()
        until(lambda: not any(map(lives, self.pids)))


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def masters(tmp_path: Path) -> Iterator[Masters]:
    made = Masters(tmp_path)
    yield made
    made.end()


def test_reach_of_a_url(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    reach = str(ROOT / "jobs/dadstorm/reach.cfg")
    assert execute(["dadstorm", "run", reach, "--data-dir", f"{tmp_path}", "--local", "--json"]) == 0
    done = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert [one["emitted"] for one in done["operators"].values()] == [5, 13, 7, 7]
    assert (done["semantics"], done["lost"], done["repeated"], done["held"]) == ("exactly-once", 0, 0, {})
    assert done["tuples"] == 12
    assert execute(["dadstorm", "output", f"{tmp_path}", "OP4", "--json"]) == 0
    shown = json.loads(capfd.readouterr().out)
    assert [one["fields"] for one in shown["tuples"]] == [[str(n)] for n in range(1, 8)]
    assert execute(["dadstorm", "status", f"{tmp_path}", "--json"]) == 0
    states = [one["state"] for one in json.loads(capfd.readouterr().out)["replicas"]]
    assert states == ["crashed", *["working"] * 6]


def test_tuples_held_before_a_frozen_count_outlive_masters(masters: Masters) -> None:
    """Killed; a standby takes over; a second master is refused; then OP2 counts each number once."""
    first = masters.start()
    masters.held(first)
    second = masters.start()
    assert second.wait(60) == 3
    standby = masters.start("--standby")
    until(lambda: standby.complained)
    first.kill()
    masters.held(standby)
    os.kill(standby.pid, signal.SIGTERM)
    assert standby.wait(60) == 130
    until(lambda: not any(map(lives, masters.pids)))
    third = masters.start()
    masters.held(third)
    assert ask(masters.data, "dadstorm.command", {"line": "Unfreeze OP2 0"}) == {"command": "Unfreeze OP2 0"}
    until(lambda: committed_txid(masters.data) == 2)
    assert [row["fields"] for row in read_sink(masters.data, "OP2_emitted").to_pylist()] == [[n] for n in NUMBERS]


def test_a_killed_replica_is_replaced_by_its_sibling_and_made_anew(masters: Masters) -> None:
    program = masters.start()
    replicas = masters.held(program)
    os.kill(replicas[0]["pid"], signal.SIGKILL)
    until(lambda: read_status(masters.data)["dadstorm"]["replicas"][0]["state"] == "crashed")
    with (masters.place / "numbers.data").open("a") as file:
        file.write("\n101\n102\n")
    until(lambda: read_status(masters.data)["dadstorm"]["replicas"][2]["held"] == 102)
    ask(masters.data, "dadstorm.command", {"line": "Start OP1"})
    states = until(lambda: [one["state"] for one in read_status(masters.data)["dadstorm"]["replicas"]])
    until(lambda: read_status(masters.data)["dadstorm"]["replicas"][0]["state"] == "working")
    assert states[1:] == ["working", "frozen"]
    masters.pids |= {one["pid"] for one in read_status(masters.data)["dadstorm"]["replicas"]}


def test_sigterm_ends_a_drill_with_its_master_and_replicas(masters: Masters) -> None:
    (masters.place / "net.cfg").write_text(NETWORK.replace("Start OP1", "Interval OP1 300\nStart OP1"))
    (place := masters.place / "temporary").mkdir()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(place)}
    drill = loaded().start("-m", "txstorm", "dadstorm", "drill", str(masters.place / "net.cfg"), env=environment)
    masters.programs.append(drill)

    def found() -> list[int] | None:
        assert drill.poll() is None, drill.complained
        status = read_status(*place.glob("txstorm-drill-*/drilled/txstorm-drill"))
        pids = [one["pid"] for one in status["dadstorm"]["replicas"] if one["pid"]]
        return [status["pid"], *pids] if len(pids) == 3 else None

    masters.pids.update(until(found))
    drill.terminate()
    assert drill.wait(60) == 130
    until(lambda: not any(map(lives, masters.pids)))
    assert not list(place.iterdir())
