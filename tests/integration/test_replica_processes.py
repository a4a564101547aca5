"""Replica processes and process creation services: work, deaths, silence, errors of user code, and nothing left behind."""

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

import pytest

from txstorm.dadstorm.configuration import Configuration, parse
from txstorm.dadstorm.processes.fleet import (
    Answered,
    Dead,
    Event,
    Failed,
    Fleet,
    FleetSettings,
    Refused,
    Silent,
    Started,
    Woke,
)
from txstorm.dadstorm.processes.services import read_key
from txstorm.errors import AwayError, InputError

pytestmark = pytest.mark.integration

E = TypeVar("E", bound=Event)
HERE = FleetSettings(local=True)
ELSEWHERE = "127.0.0.2"
"""An address of this machine that counts as another one."""
LIBRARY = """
import os, re, sys, time

class Odd:
    def does(self, fields):
        print("printed by user code")
        os.write(1, b"written by user code\\n")
        return {
            "raises": lambda: [[fields[1]], 1 / 0],
            "leaves": lambda: sys.exit("left"),
            "number": lambda: [[1]],
            "ends": lambda: os._exit(7),
            "hangs": lambda: time.sleep(600),
            "waits": lambda: [time.sleep(0.01) for _ in iter(lambda: os.path.exists(fields[1]), True)] and [],
            "makes": lambda: open(fields[1], "w") and [],
            "holds": lambda: re.match(r"(a+)+$", "a" * 40 + "b"),
        }.get(fields[0], lambda: [[one] for one in fields])()
"""


def network(directory: Path, *lines: str) -> Configuration:
    (directory / "odd.py").write_text(LIBRARY)
    return parse("\n".join(lines), directory=directory)


def operator(id: str, replicas: int = 1, spec: str = "DUP", addresses: str = "") -> str:
    named = addresses or ", ".join(f"tcp://localhost:0/{id}{one}" for one in range(replicas))
    return f"{id} input_ops x.data rep_fact {replicas} routing random address {named} operator_spec {spec}"


def tuples(number: int, *fields: str) -> list[tuple[str, tuple[str, ...]]]:
    return [(f"x:{one}", (str(one), *fields)) for one in range(number)]


class Followed:
    """A fleet, and its events as they come."""

    def __init__(self, configuration: Configuration, settings: FleetSettings) -> None:
        self._events: SimpleQueue[Event] = SimpleQueue()
        self.fleet = Fleet(configuration, self._events.put, settings)

    def next(self, kind: type[E], *name: Any) -> E:
        """Return the next event, which must be of this kind, and of this replica if it is given."""
        event = self._events.get(timeout=60)
        assert isinstance(event, kind), event
        assert event[: len(name)] == name, event
        return event

    def start(self, *names: tuple[str, int], interval: int = 0) -> dict[tuple[str, int], int]:
        """Start replicas; return their process ids."""
        for name in names:
            self.fleet.start(*name, interval)
        started = [self.next(Started) for _ in names]
        assert sorted(one[:2] for one in started) == sorted(names)
        return {one[:2]: one.pid for one in started}

    def answers(self, number: int) -> list[Answered]:
        """Return the next answers, until they have this many tuples."""
        found: list[Answered] = []
        while sum(len(one.results) for one in found) < number:
            found.append(self.next(Answered))
        assert sum(len(one.results) for one in found) == number
        return found

    def until_dead(self) -> tuple[list[str], Dead]:
        """Return the ids of all answers before the next death, and this."""
        ids: list[str] = []
        while not isinstance(event := self._events.get(timeout=60), Dead):
            assert isinstance(event, Answered), event
            ids += [id for id, _ in event.results]
        return ids, event

    def is_quiet(self) -> bool:
        return self._events.empty()


@contextmanager
def followed(configuration: Configuration, settings: FleetSettings = HERE) -> Iterator[Followed]:
    """A fleet that is open; at its end none of its processes is left."""
    made = Followed(configuration, settings)
    made.fleet.open()
    try:
        yield made
    finally:
        made.fleet.close()


def wait(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_large_deliveries_and_tuples_are_answered_in_order_by_replicas_of_two_fleets(tmp_path):
    """Deliveries beyond the buffer wait; the results of one delivery come in its order."""
    configuration = network(
        tmp_path, operator("A", 2), operator("B", spec="FILTER 2,=,b"), operator("C", spec="UNIQ 3")
    )
    long = "é" * 1_000_000
    with followed(configuration) as one, followed(configuration) as other:
        names = [("A", 0), ("A", 1), ("B", 0), ("C", 0)]
        pids = set(one.start(*names).values()) | set(other.start(("A", 0)).values())
        assert len(pids) == 5
        other.fleet.deliver("A", 0, 1, tuples(10_000, "b"))
        for number in range(1, 30):
            one.fleet.deliver("A", number % 2, number, tuples(1000, "b"))
        by_number: dict[int, list[Any]] = {}
        for answer in one.answers(29_000):
            by_number.setdefault(answer.number, []).extend(answer.results)
        assert by_number == {number: [(id, [fields]) for id, fields in tuples(1000, "b")] for number in range(1, 30)}
        assert [result for answer in other.answers(10_000) for result in answer.results][-1][0] == "x:9999"
        one.fleet.deliver("B", 0, 40, [("i", ("1", "b", long)), ("ii", ("1", "c")), ("iii", ("1",))])
        results = [("i", [("1", "b", long)]), ("ii", []), ("iii", [])]
        assert one.next(Answered) == ("B", 0, 40, results, 1)
        one.fleet.deliver("C", 0, 41, [("i", ("1", "b")), ("ii", ("1", "b", "c"))])
        assert one.next(Answered) == ("C", 0, 41, [("i", []), ("ii", [("1", "b", "c")])], 1)
    assert not any(map(lives, pids))


def test_a_replica_that_is_killed_at_a_fault_point_has_answered_what_was_before(tmp_path, monkeypatch):
    points = ("received", "taken", "processed", "answered")
    armed = [f"replica.{point}@A-{index}:kill:{3 if index else 1}" for index, point in enumerate(points)]
    monkeypatch.setenv("TXSTORM_FAULT", ",".join([*armed, "replica.received@A-4:raise:1", "replica.taken@A-4:raise:3"]))
    with followed(network(tmp_path, operator("A", 6))) as one:
        pids = one.start(*(("A", index) for index in range(6)))
        for index, answered in enumerate((0, 2, 2, 3)):
            one.fleet.deliver("A", index, index, tuples(5))
            assert one.until_dead() == ([f"x:{done}" for done in range(answered)], ("A", index, -signal.SIGKILL))
            assert one.fleet.state("A", index) == "dead"
        one.fleet.deliver("A", 4, 10, tuples(5))
        one.fleet.deliver("A", 4, 11, tuples(5))
        assert [answer.number for answer in one.answers(2)] == [11, 11]
        assert "InjectedFault" in one.next(Failed, "A", 4, 11, "x:2").text
        one.answers(2)
        one.fleet.deliver("A", 5, 12, tuples(5))
        assert [answer.number for answer in one.answers(5)] == [12]
        monkeypatch.delenv("TXSTORM_FAULT")
        assert one.start(("A", 0))["A", 0] not in pids.values()
        for _ in range(2):  # also while it starts
            one.fleet.kill("A", 5)
            one.fleet.start("A", 5)
            assert one.next(Dead) == ("A", 5, -signal.SIGKILL)
        one.fleet.deliver("A", 5, 13, tuples(5))  # waits until it is there
        assert one.next(Started, "A", 5).pid != pids["A", 5]
        assert [answer.number for answer in one.answers(5)] == [13]


def test_a_frozen_replica_is_given_up_and_ends_with_3_when_it_wakes(tmp_path):
    with followed(network(tmp_path, operator("A", 2)), FleetSettings(ping=1.6, local=True)) as one:
        pids = one.start(("A", 0), ("A", 1))
        for name in ("A", 0), ("A", 1):
            os.kill(pids[name], signal.SIGSTOP)
        wait(lambda: one.fleet.state("A", 0) == "silent")
        os.kill(pids["A", 1], signal.SIGCONT)  # in time
        for number in range(20):  # more than sockets and buffer hold
            one.fleet.deliver("A", 0, number, tuples(1000, "x" * 1000))
        one.fleet.deliver("A", 1, 20, tuples(10))
        one.answers(10)
        one.next(Silent, "A", 0)
        assert one.fleet.state("A", 0) == "dead"
        time.sleep(1.2)  # it is left alone
        os.kill(pids["A", 0], signal.SIGCONT)
        assert one.next(Woke) == ("A", 0, 3)
        assert one.start(("A", 0))["A", 0] != pids["A", 0]
        os.kill(one.fleet.pid("A", 0), signal.SIGSTOP)
        one.next(Silent, "A", 0)
        one.fleet.start("A", 0)  # the frozen one is killed
        assert one.next(Woke) == ("A", 0, -signal.SIGKILL)
        one.next(Started, "A", 0)
        one.fleet.deliver("A", 0, 21, tuples(10))
        one.answers(10)


def test_a_replica_skips_what_is_withdrawn_and_holds_at_most_its_buffer(tmp_path, monkeypatch):
    monkeypatch.setenv("TXSTORM_FAULT_TRACE", str(tmp_path / "trace"))
    configuration = network(tmp_path, operator("A", spec="CUSTOM odd,Odd,does"))
    with followed(configuration, FleetSettings(buffer=3, local=True)) as one:
        one.start(("A", 0))
        go, made = tmp_path / "go", tmp_path / "made"
        for number in range(8):
            one.fleet.deliver("A", 0, number, [("x", ("good",) if number else ("waits", str(go)))])
        go.touch()
        assert [answer.number for answer in one.answers(8)] == list(range(8))
        go.unlink()
        for number, text in enumerate(("waits", "makes", "good"), 10):
            one.fleet.deliver("A", 0, number, [("x", (text, str(made if text == "makes" else go)))])
        one.fleet.withdraw("A", 0, 11)
        one.fleet.deliver("A", 0, 13, [("x", ("good",))])
        wait(lambda: (tmp_path / "trace").read_text().count("replica.received") == 8 + 4)  # behind the withdrawal
        go.touch()
        assert [answer.number for answer in one.answers(3)] == [10, 12, 13]
        assert not made.exists()
    passed = [line.removeprefix("replica.") for line in (tmp_path / "trace").read_text().split()]
    passed = passed[: passed.index("received", 32)]
    there = [passed[:end].count("received") - passed[:end].count("answered") for end in range(len(passed) + 1)]
    assert max(there) <= 3 + 1  # the master may have an answer before this is noted


def test_user_code_that_raises_prints_hangs_or_ends_the_process(tmp_path, capfd):
    with followed(
        network(tmp_path, operator("A", spec="CUSTOM odd,Odd,does")), FleetSettings(ping=1.6, local=True)
    ) as one:
        one.start(("A", 0))
        texts = ("raises", "leaves", "number", "good")
        one.fleet.deliver("A", 0, 1, [(f"x:{text}", (text, "2")) for text in texts])
        for text, expected in zip(texts, ("ZeroDivisionError", "SystemExit", "EmitError"), strict=False):
            failed = one.next(Failed, "A", 0, 1, f"x:{text}")
            assert expected in failed.text and "odd.py:" in failed.text and text in failed.text
            assert failed.text.startswith("operator A, replica 0, tuple ")
        assert one.next(Answered).results == [("x:good", [("good",), ("2",)])]
        one.fleet.deliver("A", 0, 2, [("x:1", ("hangs",))])
        one.fleet.deliver("A", 0, 3, tuples(3))
        one.fleet.withdraw("A", 0, 3)
        time.sleep(2.5)  # it answers pings meanwhile
        assert one.fleet.state("A", 0) == "live" and one.is_quiet()
        one.fleet.kill("A", 0)
        assert one.next(Dead) == ("A", 0, -signal.SIGKILL)
        one.start(("A", 0), interval=1)
        one.fleet.deliver("A", 0, 4, tuples(3))
        assert len(one.answers(3)) == 3  # each is answered before the pause
        one.fleet.deliver("A", 0, 5, [("x:1", ("ends",))])
        assert one.until_dead() == ([], ("A", 0, 7))
    captured = capfd.readouterr()
    assert captured.out == ""
    assert "printed by user code" in captured.err and "written by user code" in captured.err


MASTER = """
import sys
from pathlib import Path
from queue import SimpleQueue
from txstorm.dadstorm.configuration import load
from txstorm.dadstorm.processes.fleet import Fleet, FleetSettings
events = SimpleQueue()
fleet = Fleet(load(sys.argv[1]), events.put, FleetSettings(ping=1, local=True))
fleet.open()
for replica, interval in enumerate((0, 600_000, 0, 0)):
    fleet.start("A", replica, interval)
pids = [events.get().pid for _ in range(4)]
for replica, text in enumerate(("idle", "sleeps", "hangs", "holds")):
    if replica:
        fleet.deliver("A", replica, replica, [("x:1", (text,))])
events.get()
print(*pids, flush=True)
events.get()
"""


def test_a_master_that_is_killed_leaves_no_process_whatever_its_replicas_do(tmp_path):
    """They are idle, sleep for an Interval, hang, and keep the interpreter to themselves; the main module has no guard."""
    configuration = network(tmp_path, operator("A", 4, "CUSTOM odd,Odd,does"))
    (tmp_path / "net.cfg").write_text(configuration.text)
    (tmp_path / "main.py").write_text(MASTER)
    master = subprocess.Popen([sys.executable, "main.py", "net.cfg"], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert master.stdout is not None
    pids = [int(pid) for pid in master.stdout.readline().split()]
    assert len(pids) == 4 and all(map(lives, pids))
    master.kill()
    master.communicate()
    wait(lambda: not any(map(lives, pids)))


@contextmanager
def service(key: Path, listen: str = f"{ELSEWHERE}:10001") -> Iterator[subprocess.Popen[str]]:
    """A process creation service that listens."""
    command = [sys.executable, "-m", "txstorm", "dadstorm", "pcs", "--listen", listen, "--key", str(key), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert json.loads(process.stdout.readline()) == {"address": listen, "key": str(key)}
            yield process
        finally:
            process.kill()


def test_replicas_of_a_service_that_is_killed_end_and_siblings_go_on(tmp_path):
    key = tmp_path / "key"
    addresses = f"tcp://{ELSEWHERE}:0/0, tcp://{ELSEWHERE}:0/1, tcp://localhost:0/2"
    configuration = network(tmp_path, operator("A", 3, addresses=addresses))
    with service(key) as process:
        with followed(configuration, FleetSettings(key=key)) as one:
            pids = one.start(("A", 0), ("A", 1), ("A", 2))
            for replica in range(3):
                one.fleet.deliver("A", replica, replica, tuples(100, "b"))
                assert one.answers(100)[0].results[7] == ("x:7", [("7", "b")])
            one.fleet.kill("A", 0)
            assert one.next(Dead) == ("A", 0, -signal.SIGKILL)
            os.kill(pids["A", 1], signal.SIGSTOP)
            process.kill()
            process.wait()
            os.kill(pids["A", 1], signal.SIGCONT)
            one.next(Dead, "A", 1)
            wait(lambda: not lives(pids["A", 1]))
            one.fleet.start("A", 1)
            text = one.next(Refused, "A", 1).text
            assert f"operator A, replica 1, address tcp://{ELSEWHERE}:0/1" in text and "pcs" in text
            one.fleet.deliver("A", 2, 9, tuples(5))
            one.answers(5)
    with pytest.raises(AwayError, match=f"operator A, replica 0, address tcp://{ELSEWHERE}:0/0: .*{ELSEWHERE}:10001"):
        Fleet(configuration, print, FleetSettings(key=key)).open()


def test_a_master_that_ends_takes_its_replicas_at_services_along(tmp_path):
    """A key that is another one, and addresses that are taken or of another machine, are named, and leave nothing."""
    key, other = tmp_path / "key", tmp_path / "other"
    read_key(other, create=True)
    with service(key, "127.0.0.3:10001"), socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        remote = network(tmp_path, operator("A", addresses="tcp://127.0.0.3:0/0"))
        with pytest.raises(InputError, match=r"operator A, replica 0, .*has another key"):
            Fleet(remote, print, FleetSettings(key=other)).open()
        with followed(remote, FleetSettings(key=key)) as one:
            (pid,) = one.start(("A", 0)).values()
            os.kill(pid, signal.SIGSTOP)
        wait(lambda: not lives(pid))
        refused = network(tmp_path, operator("B", addresses=f"tcp://127.0.0.1:{port}/b"))
        with pytest.raises(
            InputError, match=rf"operator B, replica 0, address tcp://127\.0\.0\.1:{port}/b: another program"
        ):
            Fleet(refused, print).open()
        taken.close()
        with followed(refused, FleetSettings()) as one, followed(refused, FleetSettings()) as other:
            one.start(("B", 0))
            other.start(("B", 0))  # as of a stand-by whose master is frozen
        missing = network(tmp_path, operator("C", addresses="tcp://no-such-host.invalid:11000/c"))
        with pytest.raises(InputError, match=r"operator C, replica 0, address tcp://no-such-host\.invalid.*no machine"):
            Fleet(missing, print, FleetSettings(key=key)).open()


def test_a_replica_without_its_code_is_refused_and_one_that_ends_while_it_starts_is_dead(tmp_path):
    lines = [operator("A", spec="CUSTOM odd,Odd,misses"), operator("B", spec="CUSTOM ends,Any,does")]
    (tmp_path / "ends.py").write_text(textwrap.dedent("import os\nos._exit(5)"))
    with followed(network(tmp_path, *lines)) as one:
        one.fleet.start("A", 0)
        assert "no method 'misses'" in one.next(Refused, "A", 0).text
        assert one.fleet.state("A", 0) == "dead"
        one.fleet.start("B", 0)
        assert one.next(Dead) == ("B", 0, 5)


@pytest.mark.parametrize(
    ("text", "mode", "message"),
    [(None, 0, "no key file"), ("k" * 32, 0o644, "chmod 600"), ("short", 0o600, "at least 16 bytes, found 5")],
)
def test_a_key_file_belongs_to_its_owner_only(tmp_path, text, mode, message):
    path = tmp_path / "key"
    if text is not None:
        path.write_text(text)
        path.chmod(mode)
    with pytest.raises(InputError, match=message):
        read_key(path)
    assert read_key(tmp_path / "made" / "key", create=True) == read_key(tmp_path / "made" / "key")
