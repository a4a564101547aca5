"""A landing zone written by four producers at once while its topology is killed: every row is committed once."""

import random
import threading
import time
import uuid

import pytest
from crashes import crashing
from programs import loaded
from recovery_cases import ended, environment
from scenarios.landing import topology

from txstorm import CompositeSpout, rewind
from txstorm.engine.local import LocalEngine
from txstorm.operations.rebuild_ledger import recover
from txstorm.operations.status import read_status
from txstorm.replay.audit import audit
from txstorm.replay.recording import Recording, Span
from txstorm.spouts import FileSpout, OpaqueMemoryTransactionalSpout


def rows(handle):
    return sorted(row["n"] for row in handle.sink("rows").to_pylist())


def written(path, numbers):
    hidden = path.with_name(f".{path.name}")
    hidden.write_text("".join(f"{number}\n" for number in ["n", *numbers]))
    hidden.rename(path)


class Producers:
    """Four threads that write files with names of UUIDs, until they are stopped."""

    def __init__(self, zone):
        self.zone, self.counts, self.stopping = zone, [0] * 4, threading.Event()
        self.threads = [threading.Thread(target=self.produce, args=(number,)) for number in range(4)]
        for thread in self.threads:
            thread.start()

    def produce(self, number):
        while not self.stopping.wait(0.05):
            size = random.Random(self.counts[number]).randint(1, 9)
            mine = range(self.counts[number], self.counts[number] + size)
            written(self.zone / f"{uuid.uuid4()}.csv", [4 * n + number for n in mine])
            self.counts[number] += size

    def end(self):
        self.stopping.set()
        for thread in self.threads:
            thread.join()
        return sorted(4 * n + number for number, count in enumerate(self.counts) for n in range(count))


@pytest.mark.parametrize("kills", [2, pytest.param(10, marks=pytest.mark.long)])
def test_killed_while_four_producers_write(tmp_path, kills):
    zone, data_dir = tmp_path / "zone", tmp_path / "data"
    zone.mkdir()
    written(zone / "first.csv", [])
    producers = Producers(zone)
    try:
        for kill in range(kills):
            program = loaded().start("-m", "scenarios.landing", zone, data_dir, env=environment())
            until = time.monotonic() + 120
            while program.printed.count("\n") < 1 + kill % 3 and time.monotonic() < until:
                assert program.poll() is None, program.complained
                time.sleep(0.01)
            time.sleep(random.random() / 10)
            program.kill()
            program.wait(60)
    finally:
        expected = producers.end()
    handle = ended(topology(zone), data_dir)
    assert rows(handle) == expected
    assert len(list(zone.glob("[!.]*.csv"))) - len(handle.state("spout-files").to_pylist()) in (0, 1)  # the empty one


CRASHES = ("p1.after", "p4.after", "p5.staged.after", "p6.before", "p6.after", "p7.2.written", "p8.after")


@pytest.mark.parametrize("composite", [False, True], ids=["alone", "beside an opaque source"])
def test_crashed_rewound_recovered_and_replayed(tmp_path, composite):
    """The files of a txid are rows of a state of the topology: they come and go with its transactions."""
    chance, zone, data_dir = random.Random(7), tmp_path / "zone", tmp_path / "data"
    zone.mkdir()

    def made():
        files = FileSpout(zone / "*.csv", types={"n": int}, max_batch_rows=3)
        other = OpaqueMemoryTransactionalSpout([[1]], "other", take=1)
        return topology(zone, CompositeSpout({"zone": files, "other": other}) if composite else None, max_batch_rows=3)

    def seen(handle=None):
        state = handle.state("zone-files" if composite else "spout-files")
        return sorted(row["file"].rpartition("/")[2] for row in state.to_pylist())

    numbers, names = [], []
    for point in CRASHES:
        for _ in range(2):
            names.append(f"{chance.getrandbits(32):08x}.csv")
            written(zone / names[-1], range(len(numbers), len(numbers) + 4))
            numbers += range(len(numbers), len(numbers) + 4)
        with crashing(point):
            ended(made(), data_dir)
    handle = ended(made(), data_dir)
    last = read_status(data_dir)["committed_txid"]
    assert rows(handle) == numbers and seen(handle) == sorted(names)

    verdicts = []
    audit(made(), Recording(data_dir), Span(1, last), LocalEngine(), verdicts.append)
    assert len(verdicts) == last and all(verdict.equal for verdict in verdicts)
    rewind(data_dir, to_txid=last // 2)
    written(zone / "00000000.csv", [len(numbers)])
    handle = ended(made(), data_dir)
    assert rows(handle) == [*numbers, len(numbers)] and seen(handle) == sorted([*names, "00000000.csv"])

    (data_dir / "ledger.db").unlink()
    recover(data_dir)
    written(zone / "0.csv", [len(numbers) + 1])
    assert rows(ended(made(), data_dir)) == [*numbers, len(numbers), len(numbers) + 1]
