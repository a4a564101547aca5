"""User-defined life-cycle commands of a front end: sent through the ledger, validated, executed or refused."""

import json
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from drivers import assert_as_undisturbed
from programs import loaded
from recovery_cases import environment, eventually, open_books
from scenarios.endless import life
from watched import Diary

from txstorm.books.requests import Request, put_request, read_request
from txstorm.coordinator import events as ev
from txstorm.engine.local import LocalEngine
from txstorm.errors import InputError
from txstorm.ledger import paths as names
from txstorm.ledger.lease import utc_now
from txstorm.operations.lifecycle import activate, ask, deactivate, kill
from txstorm.operations.status import read_status
from txstorm.runtime.companion import CommandHandler, Decision
from txstorm.runtime.control import Control, with_commands
from txstorm.runtime.handle import RunHandle
from txstorm.runtime.opening import RunOptions
from txstorm.runtime.run import launch

ASK = """
import json, sys
from txstorm.errors import InputError
from txstorm.operations.lifecycle import ask
try:
    print(json.dumps(ask(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))))
except InputError as error:
    print(json.dumps({"error": str(error)}))
"""


class Network:
    """A front end whose command ``network.hold`` pauses or resumes new transactions, and records the reason."""

    def __init__(self) -> None:
        self.held: list[tuple[str, str]] = []
        self.commands = [CommandHandler("network.hold", self.parse, self.hold)]

    @staticmethod
    def parse(arguments: Mapping[str, Any]) -> tuple[bool, str]:
        if not isinstance(arguments["held"], bool):
            raise InputError(f"held: expected true or false, got {arguments['held']!r}")
        return arguments["held"], str(arguments["reason"])

    def hold(self, control: Control, payload: tuple[bool, str], request: Request) -> Decision:
        held, reason = payload
        if reason == "none":
            raise InputError("a reason is needed")

        def act() -> None:
            self.held.append((reason, threading.current_thread().name))
            control.feed(ev.Deactivated() if held else ev.Activated())

        return Decision({**control.result(), "held": held, "asker": request.asker}, act, {})


@pytest.fixture
def network() -> Network:
    return Network()


@pytest.fixture
def handle(diary: Diary, data_dir: Path, network: Network) -> Iterator[RunHandle]:
    """Yield a live run of the front end."""
    handle = launch(life(diary, 0.002), LocalEngine(), data_dir, RunOptions(), commands=network.commands)
    eventually(lambda: handle.committed > 2)
    yield handle
    handle.stop()


def from_another_process(data_dir: Path, command: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    done = loaded().run("-c", ASK, data_dir, command, json.dumps(arguments), env=environment())
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def started(handle: RunHandle) -> int:
    return handle._driver.ask(lambda: handle._driver.state.started).result()


@pytest.mark.parametrize("send", [ask, from_another_process])
def test_a_command_of_a_front_end_is_carried_out_on_a_live_run(handle, network, data_dir, send):
    answer = send(data_dir, "network.hold", {"held": True, "reason": "repairs", "of_a_newer_version": 1})
    assert (answer["topology"], answer["running"], answer["held"]) == ("life", True, True)
    assert answer["asker"].startswith("pid ")
    eventually(lambda: network.held)
    assert network.held == [("repairs", "txstorm-life")]
    eventually(lambda: handle._driver.state.drained)
    held = started(handle) - 1
    eventually(lambda: handle._driver.control._look_at > handle._session.lanes.monotonic() + 0.1)
    assert handle.committed == started(handle) - 1 == held
    assert send(data_dir, "network.hold", {"held": False, "reason": "done"})["held"] is False
    eventually(lambda: handle.committed > held + 2)
    # The commands of every run are beside it.
    assert not deactivate(data_dir)["active"]
    assert activate(data_dir)["active"]
    assert kill(data_dir)["ended"]
    assert_as_undisturbed(data_dir, int(read_status(data_dir)["committed_txid"]))


@pytest.mark.parametrize(
    ("command", "arguments", "message"),
    [
        ("network.hold", {"held": "yes", "reason": "r"}, "network.hold: held: expected true or false, got 'yes'"),
        ("network.hold", {"held": True}, r"network.hold: arguments .* are not understood here: KeyError\('reason'\)"),
        ("network.hold", {"held": True, "reason": "none"}, "network.hold: a reason is needed"),
        (
            "network.melt",
            {},
            "'network.melt' is unknown to this run, which has accept-clock, activate, .*, network.hold, rebalance, snapshot.cancel, snapshot.want;",
        ),
        ("rebalance", {"parallelism": "pass=2"}, "parallelism: expected component → number of tasks, got 'pass=2'"),
        ("kill", {"wait_seconds": "inf"}, "wait_seconds: expected a number of seconds, got inf"),
    ],
)
def test_a_refused_command_does_no_harm(handle, network, data_dir, command, arguments, message):
    with pytest.raises(InputError, match=message):
        ask(data_dir, command, arguments)
    before = handle.committed
    eventually(lambda: handle.committed > before + 2)
    with open_books(data_dir) as books:
        assert read_request(books.ledger)[0] is None
        assert books.ledger.scan(names.ANSWERS) == {}
    assert network.held == []
    handle.stop(drain=True)
    assert_as_undisturbed(data_dir, handle.committed)


def test_a_command_is_unknown_to_a_run_without_its_front_end(go, data_dir):
    handle = go(more=1)
    error = from_another_process(data_dir, "network.hold", {"held": True, "reason": "repairs"})["error"]
    assert "'network.hold' is unknown to this run" in error
    assert handle.isActive


def test_requests_and_answers_are_stored_as_before(handle, data_dir):
    """Requests and responses are byte-identical to those of earlier versions."""
    asked_at = utc_now().isoformat()
    request = Request("0" * 32, "deactivate", {}, "pid 1 on host", asked_at)
    with open_books(data_dir, write=True) as books:
        put = put_request(request, read_request(books.ledger)[1])
        sent = {
            "id": "0" * 32,
            "command": "deactivate",
            "arguments": {},
            "asker": "pid 1 on host",
            "asked_at": asked_at,
        }
        assert json.loads(put.value)["value"] == {"format": "txstorm-request", "version": 1, "request": sent}
        books.ledger.commit([put])
        answer = json.loads(eventually(lambda: books.ledger.get(names.answer_path("0" * 32))).value)["value"]
    assert set(answer) == {"answered_at", "result", "error"}
    assert set(answer["result"]) == {"topology", "running", "active", "committed_txid", "in_flight"}
    assert (answer["result"]["active"], answer["error"]) == (False, None)


def test_two_commands_of_one_name_are_refused_before_the_run_begins(diary, data_dir, network):
    with pytest.raises(ValueError, match=r"command 'network.hold': two handlers have this name"):
        with_commands([*network.commands, *network.commands])
    again = CommandHandler("kill", network.parse, network.hold)
    with pytest.raises(ValueError, match="command 'kill': two handlers"):
        launch(life(diary), LocalEngine(), data_dir, RunOptions(), commands=[again])
    assert not data_dir.exists()
