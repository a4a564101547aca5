"""Two or more drivers: one leads, the others stand by or are refused; a driver that loses its lease is fenced."""

import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from drivers import Drive, assert_as_undisturbed, published
from kazoo.client import KazooClient
from recovery_cases import eventually, open_books
from scenarios.endless import life
from watched import Diary

from txstorm import run
from txstorm.books.books import Books
from txstorm.books.records import Identity
from txstorm.engine.local import LocalEngine
from txstorm.errors import DataDirectoryError, FencedError, HeldError, TxstormError
from txstorm.ledger.lease import FileLease
from txstorm.ledger.memory import MemoryLedger
from txstorm.ledger.sqlite import SqliteLedger
from txstorm.ledger.zookeeper.ledger import ZooKeeperLedger
from txstorm.operations.lifecycle import deactivate, kill
from txstorm.operations.status import read_status
from txstorm.runtime.handle import RunHandle
from txstorm.runtime.standby import real_end
from txstorm.state.store import StateStore

ALONE = {"max_group_txids": 1}


@pytest.mark.integration
@pytest.mark.parametrize(
    "driving", ["sqlite", "zookeeper", pytest.param("delta", marks=pytest.mark.long)], indirect=True
)
def test_a_standby_takes_over_from_a_killed_driver(driving: Drive, data_dir: Path):
    """With a ledger elsewhere it takes over when the killed driver's lease has expired."""
    first = driving.leader()
    second = driving("--standby")
    second.says(f"life: standing by for 'life' (pid {first.pid} on ")
    code, told = driving().ends()
    assert (code, told["error"]["type"]) == (3, "HeldError")
    assert f"pid {first.pid} " in told["error"]["message"]
    assert f"pid {first.pid} " in read_status(data_dir)["holder"]

    first.kill()
    second.leads()
    assert f"life: taking over from 'life' (pid {first.pid} on" in second.said
    second.ends_killed()


@pytest.mark.integration
def test_two_standbys_take_over_one_after_the_other(drive: Drive):
    first = drive.leader()
    waiting = [drive("--standby"), drive("--standby")]
    for one in waiting:
        one.says(f"standing by for 'life' (pid {first.pid} ")
    first.kill()
    eventually(lambda: any("taking over" in one.said for one in waiting))
    second, third = sorted(waiting, key=lambda one: "taking over" not in one.said)
    second.leads()
    third.says(f"standing by for 'life' (pid {second.pid} on")
    second.kill()
    third.leads()
    third.ends_killed()


@pytest.mark.integration
def test_kill_ends_the_run_and_those_that_stand_by_for_it(drive: Drive, data_dir: Path):
    first = drive.leader()
    waiting = [drive("--standby"), drive("--standby")]
    for one in waiting:
        one.says("standing by for")
    last = kill(data_dir)["committed_txid"]
    assert first.ends()[0] == 0
    for one in waiting:
        code, said = one.ends()
        assert (code, said["error"]["type"]) == (0, "KilledError")
        assert "topology 'life' was killed by pid " in one.said
    assert read_status(data_dir)["mode"] == "killed"
    assert_as_undisturbed(data_dir, last)

    again = drive("--standby", "--until-txid", str(last + 3))
    assert again.ends()[0] == 0  # what ended an earlier run does not end this one


@pytest.mark.integration
def test_a_standby_is_interrupted_and_does_not_disturb_the_leader(drive: Drive):
    first = drive.leader()
    second = drive("--standby")
    second.says("standing by for")
    code, told = second.interrupt()
    assert (code, told["error"]["type"]) == (130, "Interrupted")
    first.leads()
    assert first.interrupt()[0] == 130


class Recorder(LocalEngine):
    """An engine that records its start and its close."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def start(self, program):
        self.calls.append("start")
        super().start(program)

    def warm_up(self):
        self.calls.append("warm up")
        super().warm_up()

    def close(self):
        self.calls.append("close")
        super().close()


@pytest.fixture
def held(place: Path) -> Iterator[SqliteLedger]:
    """Yield the ledger of the data directory, with its lease held by another coordinator."""
    (place / "data").mkdir()
    ledger = SqliteLedger(place / "data" / "ledger.db", create=True)
    ledger.acquire("first")
    yield ledger
    ledger.close()


class Standby(threading.Thread):
    """A thread that runs ``run(…, standby=…)``."""

    def __init__(self, place: Path, **options: Any) -> None:
        super().__init__(daemon=True)
        self.engine, self.told = Recorder(), []
        self.options = {"data_dir": place / "data", "standby": self.told.append, **options}
        self.topology = life(Diary(place / "diary"))
        self.handle: RunHandle | None = None
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self.handle = run(self.topology, engine=self.engine, **self.options)
        except Exception as error:  # noqa: BLE001 - the test looks at it
            self.error = error

    def waits(self) -> None:
        eventually(lambda: self.told or self.error)
        assert self.error is None

    def returned(self) -> RunHandle:
        self.join(60)
        assert self.error is None
        assert self.handle is not None
        return self.handle


def test_the_engine_is_started_before_the_wait_and_nothing_is_written_in_it(held, place, data_dir):
    standby = Standby(place, until_txid=3)
    standby.waits()
    assert standby.engine.calls == ["start", "warm up"]
    assert standby.told[0].startswith("life: standing by for 'first' (pid ")
    assert held.children("") == []
    assert not (data_dir / "format.json").exists()
    assert standby.handle is None

    held.close()
    handle = standby.returned()
    handle.awaitTermination()
    assert handle.committed == 3
    assert standby.told[-1].startswith("life: taking over from 'first'")
    assert standby.engine.calls == ["start", "warm up", "start", "close"]
    assert_as_undisturbed(data_dir, 3)


def test_one_that_cannot_lead_after_all_closes_its_engine_and_gives_the_lease_back(held, place, data_dir):
    standby = Standby(place)
    standby.waits()
    Books(held, data_dir / "intents").write_identity(Identity("other", "0" * 32), None)
    held.release()
    standby.join(60)
    assert isinstance(standby.error, DataDirectoryError)
    assert "belongs to topology 'other'" in str(standby.error)
    assert standby.engine.calls == ["start", "warm up", "close"]
    assert held.holder() is None


def test_a_ledger_that_is_away_for_a_while_is_waited_for(held, place, monkeypatch):
    asked, real = [], SqliteLedger.wait_free
    taken, acquire = [], SqliteLedger.acquire

    def taking(self: SqliteLedger, owner: str) -> None:
        acquire(self, owner)
        taken.append(owner)

    def away(self: SqliteLedger, seconds: float) -> bool:
        asked.append(seconds)
        if len(asked) < 3:
            raise TxstormError("no answer")
        return real(self, seconds)

    monkeypatch.setattr(SqliteLedger, "wait_free", away)
    monkeypatch.setattr(SqliteLedger, "acquire", taking)
    standby = Standby(place, until_txid=1)
    eventually(lambda: len(asked) > 3)
    assert any("the ledger cannot be read; retrying: no answer" in one for one in standby.told)
    assert taken == []
    held.close()
    standby.returned().awaitTermination()
    assert len(taken) == 1, "it leads with the lease"


def test_without_standby_a_held_lease_is_refused(held, place, data_dir):
    engine = Recorder()
    with pytest.raises(HeldError, match="'first'"):
        run(life(Diary(place / "diary")), engine=engine, data_dir=data_dir)
    assert engine.calls == []


@pytest.fixture
def lock(place: Path) -> Path:
    """Return the lock file of the lease; removing it revokes the lease, as an expired session would."""
    return place / "data" / "ledger.db.lock"


def fenced(handle: RunHandle) -> str:
    """Return the messages of a run that steps down."""
    with pytest.raises(FencedError) as caught:
        handle.awaitTermination(60)
    return str(caught.value)


def expire(books: Books) -> None:
    """Expire a ledger's session through a second client with its id and password; wait until the ledger detects it."""
    ledger = books.ledger
    assert isinstance(ledger, ZooKeeperLedger)
    session = ledger._session.session
    second = KazooClient(ledger._session.hosts, client_id=ledger._session._kazoo.client_id)
    second.start()
    second.stop()
    second.close()
    eventually(lambda: ledger._session.session != session)


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("kind", ["sqlite", pytest.param("zookeeper", marks=pytest.mark.integration)])
def test_a_lease_that_is_lost_around_the_decision_ends_the_run_with_nothing_more_decided_or_published(
    go, data_dir, lock, request, monkeypatch, kind, moment
):
    real, options, lose = Books.decide, {"settings": ALONE}, lambda books: lock.unlink()
    if kind == "zookeeper":
        ledger = f"zookeeper:{request.getfixturevalue('zookeeper_server').new_chroot()}"
        options, lose = {"settings": {**ALONE, "zookeeper_session_timeout": 2.0}, "ledger": ledger}, expire

    def decide(books: Books, intent: Any) -> None:
        if intent.last == 6 and moment == "before":
            lose(books)
        real(books, intent)
        if intent.last == 6:
            lose(books)

    with monkeypatch.context() as patch:
        patch.setattr(Books, "decide", decide)
        handle = go(**options)
        said = fenced(handle)
    assert re.search("the session 0x[0-9a-f]* has ended|its lock file was removed; another run may lead", said)
    assert handle.committed == 5
    assert published(data_dir) == {5}
    with open_books(data_dir) as books:
        assert books.currtx() == 6
        assert [intent.last for intent in books.live_intents()] == ([] if moment == "before" else [6])

    go(until_txid=12, **options).awaitTermination()  # behind all that was planned
    assert_as_undisturbed(data_dir, 12)


def test_a_lease_that_is_lost_while_nothing_is_to_be_done_ends_the_run(go, place, data_dir, lock):
    handle = go(settings=ALONE, more=2)
    deactivate(data_dir)
    eventually(lambda: handle.phase == "inactive" and not handle.in_flight)
    before = handle.committed
    # Once that is told, there is nothing more to write.
    eventually(lambda: _told(place) == ("inactive", [], before))
    lock.unlink()
    fenced(handle)
    with open_books(data_dir) as books:
        assert books.currtx() == before + 1


def _told(place: Path) -> tuple[str, list[Any], int]:
    with open_books(place / "data") as books:
        told = books.status() or {}
    return told["mode"], told["in_flight"], told["committed_txid"]


@pytest.mark.integration
@pytest.mark.parametrize(
    ("moment", "message"),
    [("before", "another coordinator has taken over: epoch 1 is"), ("after", "a coordinator with epoch 2 has taken")],
)
def test_without_a_lease_to_check_the_epochs_of_ledger_and_tables_fence_as_well(
    go, drive, data_dir, lock, monkeypatch, moment, message
):
    """The stale coordinator is frozen around its decision while another process takes over and continues."""
    refusals: list[str] = []
    real = Books.decide

    def take_over() -> None:
        lock.unlink()
        taker = drive("--until-txid", "9")
        assert taker.ends()[0] == 0, taker.said

    def decide(books: Books, intent: Any) -> None:
        if intent.last == 4 and moment == "before":
            take_over()
        real(books, intent)
        if intent.last == 4:
            take_over()

    def noted(call: Any) -> Any:
        def calling(*arguments: Any) -> Any:
            try:
                return call(*arguments)
            except FencedError as error:
                refusals.append(str(error))
                raise

        return calling

    monkeypatch.setattr(FileLease, "check", lambda self: None)
    monkeypatch.setattr(Books, "decide", noted(decide))
    monkeypatch.setattr(StateStore, "publish", noted(StateStore.publish))
    fenced(go(settings=ALONE))
    assert len(refusals) == 1
    assert message in refusals[0]
    assert_as_undisturbed(data_dir, 9)


def test_whatever_a_run_dies_of_that_has_lost_its_lease_it_says_so(go, lock, monkeypatch):
    def decide(books: Books, intent: Any) -> None:
        lock.unlink()
        raise FileNotFoundError(2, "No such file or directory", "a file that the other one swept")

    monkeypatch.setattr(Books, "decide", decide)
    assert "its lock file was removed" in fenced(go(settings=ALONE))


def test_the_loss_of_the_lease_is_named_and_what_came_of_it_is_its_cause(place):
    ledger = MemoryLedger()
    ledger.acquire("life")
    books, error = Books(ledger, place), OSError("gone")
    assert real_end(error, books) is error
    ledger.expire()
    found = real_end(error, books)
    assert isinstance(found, FencedError)
    assert found.__cause__ is error
    assert real_end(found, books) is found


def test_process_all_available_raises_when_the_lease_is_lost(go, lock):
    handle = go(trouble=lambda txid: lock.unlink() if txid == 4 else None, settings=ALONE)
    with pytest.raises(FencedError):
        handle.processAllAvailable()
