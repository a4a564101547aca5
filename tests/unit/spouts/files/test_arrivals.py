"""File spout in the order of arrival: files that come, grow, go and return, against a plain model."""

from __future__ import annotations

import os
import random
import uuid

import pytest
from spouts_recording import Bench

from txstorm.api.spout import NOT_READY
from txstorm.spouts import FileSpout


class Zone:
    """A landing zone, and the rows of its spout as transactions that are planned, committed, replayed and rewound."""

    def __init__(self, path, chance, **options):
        self.path, self.chance, self.options = path, chance, options
        self.contents: dict[str, list[str]] = {}
        self.rows: dict[int, list[str]] = {}
        self.written = self.committed = self.floor = 0
        self.bench = self.made()

    def made(self):
        tasks = self.chance.choice([1, 2, 3])
        return Bench(FileSpout(self.path / "*.txt", max_batch_rows=self.rows_of_batch(), **self.options), tasks)

    def rows_of_batch(self):
        return self.chance.choice([2, 5, 50])

    def write(self, name, count, mode="a"):
        lines = [str(self.written + i) for i in range(count)]
        self.written += count
        self.contents.setdefault(name, []).extend(lines)
        with open(self.path / name, mode) as file:
            file.writelines(f"{line}\n" for line in lines)

    def arrive(self):
        self.write(f"{uuid.UUID(int=self.chance.getrandbits(128))}.txt", self.chance.choice([0, 1, 4, 20]))

    def grow(self):
        if there := sorted(os.listdir(self.path)):
            self.write(self.chance.choice(there), self.chance.choice([1, 3]))

    def touch(self):
        for name in sorted(os.listdir(self.path))[:1]:
            os.utime(self.path / name, ns=(self.written, self.written))

    def vanish(self):
        """Remove a file that is read to its end, as a finished transaction says; it can no more be read again."""
        read = {row for rows in self.rows.values() for row in rows}
        for name in sorted(os.listdir(self.path)):
            ended = any(name in str(one["meta"].get("files", ())) for one in self.bench.documents.values())
            if ended and read.issuperset(self.contents[name]):
                os.unlink(self.path / name)
                self.committed = self.floor = max(self.rows, default=0)
                return

    def return_(self):
        gone = sorted(self.contents.keys() - set(os.listdir(self.path)))
        for name in gone[:1]:
            (self.path / name).write_text("".join(f"{line}\n" for line in self.contents[name]))

    def plan(self):
        txid = max(self.rows, default=0) + 1
        if self.bench.plan(txid) is NOT_READY:
            return False
        self.rows[txid] = [row for (row,) in self.bench.rows(txid)]
        return True

    def commit(self):
        last = max(self.rows, default=0)
        self.committed = self.chance.randint(self.committed, last)
        if self.committed:
            self.bench.planner.committed(self.bench.documents[self.committed])

    def restart(self):
        documents = self.bench.documents
        self.bench = self.made()
        self.bench.documents = documents
        self.bench.load(self.committed)
        for txid in range(self.committed + 1, max(self.rows, default=0) + 1):
            assert sorted(row for (row,) in self.bench.rows(txid)) == sorted(self.rows[txid])

    def rewind(self):
        last = self.chance.randint(self.floor, self.committed)
        self.bench.documents = {txid: one for txid, one in self.bench.documents.items() if txid <= last}
        self.rows = {txid: rows for txid, rows in self.rows.items() if txid <= last}
        self.committed = last
        self.restart()

    def read_all(self):
        """Read what is there when asked, as a run with `available_now`; all of it is then covered."""
        asked, mark = set(map(str, range(self.written))), self.bench.planner.latest()
        while not self.bench.planner.reached(self.bench.documents.get(max(self.rows, default=0)), mark):
            assert self.plan(), "more was there when asked"
        assert asked == {row for rows in self.rows.values() for row in rows}


@pytest.mark.parametrize("seed", range(40))
def test_every_row_is_read_once_whatever_happens(tmp_path, seed):
    chance = random.Random(seed)
    zone = Zone(tmp_path, chance)
    zone.write("m.txt", 3)
    steps = [zone.arrive, zone.grow, zone.plan, zone.plan, zone.commit, zone.restart]
    steps += [zone.touch, zone.vanish, zone.return_, zone.rewind, zone.read_all]
    for _ in range(60):
        chance.choice(steps)()
    zone.restart()
    zone.read_all()
    assert sorted(row for rows in zone.rows.values() for row in rows) == sorted(map(str, range(zone.written)))
    assert not any(document["meta"].get("files") == [] for document in zone.bench.documents.values())
