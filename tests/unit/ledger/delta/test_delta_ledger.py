"""The ledger in a Delta table: lost responses, killed and frozen lease holders, log truncation, and corruption."""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest
from seeded import seeded

from txstorm.clients.delta.control_log import ControlTable
from txstorm.errors import ConflictError, DataDirectoryError, FencedError, HeldError, LedgerCorrupt, TxstormError
from txstorm.lanes import THREADS
from txstorm.ledger.delta.content import SNAPSHOT_EVERY
from txstorm.ledger.delta.ledger import DeltaLedger
from txstorm.ledger.lease import process_has_ended, process_mark
from txstorm.ledger.port import ABSENT, Check, Delete, Entry, Put

integration = pytest.mark.integration
SHORT = 0.6
ELSEWHERE = "delta.process_mark = lambda: 'boot of another machine/pid:[1]/7/7'\n"
HOLD = """
ledger = DeltaLedger(str(path), create=True, lease_seconds={seconds})
ledger.acquire("word-count")
ledger.commit([Put("a", b"first")])
print("held", flush=True)
input()
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "control"


@pytest.fixture
def handle(place: Path) -> Iterator[Callable[..., DeltaLedger]]:
    """Yield a function that opens another handle on the ledger; all handles are closed after the test."""
    opened: list[DeltaLedger] = []

    def another(**options: object) -> DeltaLedger:
        opened.append(DeltaLedger(str(place), create=True, **options))
        return opened[-1]

    yield another
    for one in opened:
        one.close()


def entries_of(place: Path) -> list[Path]:
    return sorted((place / "_delta_log").glob("*[0-9].json"))


@pytest.mark.parametrize("answer", [TxstormError("connection reset"), ConflictError("there is one already")])
def test_a_commit_whose_response_is_lost_happens_once(handle, monkeypatch, answer):
    ledger, written = handle(), ControlTable.append
    ledger.commit([Put("a", b"0")])

    def lose(table, *arguments):
        written(table, *arguments)
        monkeypatch.setattr(ControlTable, "append", written)
        raise answer

    monkeypatch.setattr(ControlTable, "append", lose)
    ledger.commit([Put("a", b"1", 0), Put("n", b"", ABSENT)])
    monkeypatch.undo()

    for reader in (ledger, handle()):
        assert reader.scan("") == {"a": Entry(b"1", 1), "n": Entry(b"", 0)}
    ledger.commit([Put("a", b"2", 1)])


@pytest.mark.parametrize("failures", [2, 1000])
def test_a_commit_that_did_not_arrive_is_retried_until_it_is_an_error_and_nothing_changes(
    handle, monkeypatch, failures
):
    ledger, written, tries = handle(pause=lambda _: None), ControlTable.append, []

    def fail(table, *arguments):
        tries.append(1)
        if len(tries) <= failures:
            raise TxstormError("connection refused")
        written(table, *arguments)

    monkeypatch.setattr(ControlTable, "append", fail)
    if failures == 2:
        ledger.commit([Put("a", b"0")])
        assert handle().get("a") == Entry(b"0", 0)
        assert len(tries) == 3
    else:
        with pytest.raises(TxstormError, match="connection refused"):
            ledger.commit([Put("a", b"0")])
        monkeypatch.undo()
        assert ledger.get("a") is None


def test_a_response_is_lost_and_another_writer_commits_first(handle, monkeypatch):
    """If the response is lost and another writer commits first, the expectations are checked on the new version."""
    ledger, other, written = handle(), handle(), ControlTable.append
    ledger.commit([Put("a", b"0")])

    def be_late(table, *arguments):
        monkeypatch.setattr(ControlTable, "append", written)
        other.commit([Put("a", b"other", 0)])
        raise TxstormError("connection reset")

    monkeypatch.setattr(ControlTable, "append", be_late)
    with pytest.raises(ConflictError, match="'a': expected version 0, got version 1"):
        ledger.commit([Put("a", b"mine", 0)])
    assert ledger.get("a") == Entry(b"other", 1)


@integration
def test_every_commit_is_complete_or_absent_after_a_kill(place, handle, processes):
    chance = seeded()
    code = """
ledger = DeltaLedger(str(path), create=True)
ledger.acquire("word-count")
number = int((ledger.get("a") or Entry(b"0", 0)).value)
while True:
    number += 1
    ledger.commit([Put("a", b"%d" % number), Put(f"old/{number}", b"x"), Delete(f"old/{number - 3}"), Put("b", b"%d" % number)])
    print(number, flush=True)
"""
    told = 0
    for _ in range(2):
        child = processes.start(code, place)
        for _ in range(chance.randint(SNAPSHOT_EVERY - 10, SNAPSHOT_EVERY + 10)):
            told = int(child.stdout.readline())
        child.kill()
        child.wait()
        ledger = handle()
        assert ledger.holder() is None  # it ran on this machine and has ended
        number = int(ledger.get("a").value)
        assert number >= told  # acknowledged commits exist
        assert ledger.get("b").value == b"%d" % number
        assert ledger.children("old") == [str(one) for one in range(number - 2, number + 1)]
    assert ledger.get("a").version == number - 1
    ledger.acquire("second")
    ledger.commit([Put("a", b"2")])


@integration
def test_a_second_process_on_this_machine_is_rejected_at_once(place, handle, processes):
    holder = processes.start(HOLD.format(seconds=60), place)
    assert holder.stdout.readline() == "held\n"
    second, began = handle(), time.monotonic()
    with pytest.raises(HeldError, match=rf"'word-count' \(pid {holder.pid} on"):
        second.acquire("second")
    assert time.monotonic() - began < 30  # it does not wait for the length of the lease
    assert f"pid {holder.pid}" in second.holder()


@integration
def test_a_frozen_holder_on_another_machine_is_fenced_when_it_resumes(place, handle, processes):
    """A standby that sees no heartbeat for a lease period acquires the lease; the frozen holder resumes fenced."""
    code = (
        ELSEWHERE
        + HOLD.format(seconds=SHORT)
        + (
            "for use in (ledger.check_lease, lambda: ledger.commit([Put('a', b'late')])):\n"
            "    try:\n        use()\n        print('went through', flush=True)\n"
            "    except FencedError as error:\n        print(error, flush=True)\n"
        )
    )
    holder = processes.start(code, place)
    assert holder.stdout.readline() == "held\n"
    second = handle(lease_seconds=SHORT)
    with pytest.raises(HeldError):  # its heartbeat continues
        second.acquire("second")
    assert not second.wait_free(2 * SHORT)
    holder.send_signal(signal.SIGSTOP)
    began = THREADS.boot()
    assert second.wait_free(60)
    assert THREADS.boot() - began >= SHORT / 2  # at most a third of a lease had passed since its last heartbeat
    second.acquire("second")
    second.commit([Put("a", b"second")])
    holder.send_signal(signal.SIGCONT)
    holder.stdin.write("\n")
    holder.stdin.flush()
    for _ in range(2):
        assert "expected this run to still hold the lease, got: it is held by 'second'" in holder.stdout.readline()
    assert second.get("a") == Entry(b"second", 1)
    second.check_lease()


@integration
def test_the_lease_of_a_holder_killed_on_another_machine_is_acquired(place, handle, processes):
    """A process that has not watched the lease waits for a heartbeat, and acquires the lease if none arrives."""
    holder = processes.start(ELSEWHERE + HOLD.format(seconds=SHORT), place)
    assert holder.stdout.readline() == "held\n"
    holder.kill()
    holder.wait()
    second = handle()
    assert second.holder() is not None  # a lost lease cannot be detected yet
    second.acquire("second")
    assert second.get("a") == Entry(b"first", 0)


def test_an_idle_holder_sends_heartbeats(place, handle):
    holder, other = handle(lease_seconds=1.5), handle()
    holder.acquire("quiet")
    assert not other.wait_free(3.5)
    assert len(entries_of(place)) >= 4
    holder.check_lease()


def test_an_expired_lease_is_kept_if_no_other_process_acquired_it(handle, monkeypatch):
    """After a suspend, a lease that has expired by the clock stays valid if no other process has acquired it."""
    now = [1000.0]
    ledger = handle(monotonic=lambda: now[0])
    ledger.acquire("sleeper")
    now[0] += 3600
    ledger.check_lease()
    ledger.commit([Put("a", b"")])
    now[0] += 3600
    monkeypatch.setattr(ControlTable, "append", lambda *_: pytest.fail("it was sure of its lease"))
    now[0] -= 3600
    ledger.check_lease()


def test_a_fenced_holder_that_reads_before_its_heartbeat_stays_fenced(handle):
    """A fenced holder that reads the newest version before its next heartbeat does not take the lease back."""
    now = [1000.0, 1000.0]
    first, second = (handle(monotonic=lambda i=i: now[i]) for i in (0, 1))
    first.acquire("first")
    with pytest.raises(HeldError):
        second.acquire("second")
    now[1] += 3600
    second.acquire("second")
    assert first.get("a") is None
    now[0] += 3600
    first._renew(first._held)
    assert "'second'" in second.holder()
    with pytest.raises(FencedError, match="it is held by 'second'"):
        first.check_lease()
    now[1] += 3600
    second.check_lease()


def test_a_store_unreachable_for_a_lease_period_loses_the_lease(handle, monkeypatch):
    now = [1000.0]

    def pause(seconds: float) -> None:
        now[0] += seconds

    ledger = handle(monotonic=lambda: now[0], pause=pause)
    ledger.acquire("cut off")
    now[0] += 3600

    def unreachable(*_):
        raise TxstormError("network is unreachable")

    monkeypatch.setattr(ControlTable, "append", unreachable)
    with pytest.raises(FencedError, match=r"a store that did not answer for 10 s .network is unreachable"):
        ledger.check_lease()
    monkeypatch.undo()
    with pytest.raises(FencedError):  # it remains fenced
        ledger.commit([Put("a", b"")])
    ledger.release()
    ledger.commit([Put("a", b"")])


@pytest.mark.integration
def test_only_processes_of_this_machine_are_known_to_have_ended():
    own = process_mark()
    place, number, started = own.rsplit("/", 2)
    child = os.fork()
    if child == 0:
        os._exit(0)
    marks = [f"{place}/{child}/1", f"{place}/{number}/{int(started) + 1}"]
    os.waitpid(child, 0)
    assert all(map(process_has_ended, marks))
    assert not any(map(process_has_ended, (own, "", "x", f"other/pid:[1]/{child}/1", f"{place}/x/1")))


def test_log_and_snapshots_are_bounded_and_complete(place, handle):
    writer, slow, model = handle(), handle(), {}
    writer.acquire("word-count")
    sizes = []
    for number in range(4 * SNAPSHOT_EVERY):
        path = f"meta/{number % 7}"
        writer.commit([Put(path, str(number).encode()), Delete(f"meta/{(number + 3) % 7}")], durable=number % 2 == 0)
        model[path] = str(number).encode()
        model.pop(f"meta/{(number + 3) % 7}", None)
        sizes.append(len(list((place / "_delta_log").iterdir())))
    assert max(sizes) < 2 * SNAPSHOT_EVERY + 20
    assert len(list((place / "snapshots").iterdir())) == 2
    # A handle that has not read since the beginning, the writer, and new handles.
    for reader in (slow, writer, handle(), handle(read_only=True)):
        assert {f"meta/{name}": entry.value for name, entry in reader.scan("meta").items()} == model
        assert "'word-count'" in reader.holder()
    slow.commit([Check("meta/0", slow.get("meta/0").version)] if slow.get("meta/0") else [])
    rows = deltalake.DeltaTable(place).to_pyarrow_table()
    assert set(rows["path"].to_pylist()) <= {f"meta/{number}" for number in range(7)}


def test_a_handle_that_put_its_truncated_entry_back_goes_on_at_the_newest_version(place, handle):
    """As does one that was frozen while it replaced its last entry by a synced copy."""
    slow, writer = handle(pause=lambda _: None), handle()
    slow.commit([Put("a", b"0")])
    last = entries_of(place)[-1]
    content = last.read_bytes()
    for number in range(3 * SNAPSHOT_EVERY):
        writer.commit([Put("a", str(number).encode())], durable=False)
    assert not last.exists()
    last.write_bytes(content)
    slow.commit([Put("b", b"late")])
    assert slow.get("a").value == str(3 * SNAPSHOT_EVERY - 1).encode()
    assert {name: one.value for name, one in handle().scan("").items()}["b"] == b"late"


def test_a_failed_snapshot_loses_nothing(place, handle, caplog):
    ledger = handle()
    (place / "snapshots").write_bytes(b"in the way")
    for number in range(SNAPSHOT_EVERY + 3):
        ledger.commit([Put("a", str(number).encode())])
    assert "no snapshot" in caplog.text
    assert handle().get("a").value == str(SNAPSHOT_EVERY + 2).encode()


def refused(place: Path, kind: type[Exception], says: str | None = None) -> None:
    with pytest.raises(kind, match=says):
        DeltaLedger(str(place), create=False).close()


def test_foreign_content_is_not_accepted_as_a_ledger(place, tmp_path):
    refused(place, DataDirectoryError, f"ledger {place}: expected a ledger in a Delta table, found none")
    deltalake.write_deltalake(tmp_path / "other", pa.table({"a": [1]}))
    refused(tmp_path / "other", DataDirectoryError, "expected a txstorm ledger of format 1, got another Delta table")
    with pytest.raises(DataDirectoryError, match="got another Delta table"):
        DeltaLedger(str(tmp_path / "other"), create=True)


def written(place: Path, commits: int) -> Path:
    """Commit to a new ledger at `place`; return its newest log entry."""
    with closing(DeltaLedger(str(place), create=True)) as ledger:
        for number in range(commits):
            ledger.commit([Put("a", str(number).encode())])
    return entries_of(place)[-1]


@pytest.mark.parametrize(
    ("change", "kind", "says"),
    [
        (lambda info: info["changes"][0].__setitem__(1, "eA=="), LedgerCorrupt, "another checksum"),
        (lambda info: info.update(format=2), DataDirectoryError, "expected format 1, got 2"),
    ],
    ids=["another value", "newer"],
)
def test_a_damaged_or_newer_entry_is_refused(place, change, kind, says):
    path = written(place, 1)
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    for line in lines:
        if "commitInfo" in line:
            change(line["commitInfo"]["txstorm"])
    path.write_text("\n".join(map(json.dumps, lines)))
    refused(place, kind, says)


def test_a_damaged_snapshot_and_a_lost_entry_of_the_log_are_refused(place):
    written(place, SNAPSHOT_EVERY + 1)
    (snapshot,) = (place / "snapshots").iterdir()
    snapshot.write_bytes(snapshot.read_bytes()[:-5])
    refused(place, LedgerCorrupt, rf"{snapshot.name}.*a file that cannot be read")
    snapshot.unlink()
    refused(place, LedgerCorrupt, "log")
    place = place.with_name("other")
    written(place, 5)
    entries_of(place)[3].unlink()
    refused(place, TxstormError)
