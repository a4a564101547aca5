"""A commit target of a kind that txstorm does not have: a file of lines, each written exactly once, in txid order."""

import fcntl
import json
import os
from dataclasses import astuple
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from txstorm.api.external import Mark, OwnTarget
from txstorm.state.external.mark_rules import MarkedTarget
from txstorm.state.external.targets import ExternalTarget
from txstorm.storage.rows.schema import TXID
from txstorm.storage.tables.identity import TableRef

SCHEMA = pa.schema([pa.field("line", pa.string()), TXID])


def lines_in(file):
    """Return the lines in the file of a target."""
    return json.loads(file.read_text())["lines"] if file.exists() else []


class Lines:
    """Handle of one task."""

    def __init__(self):
        self.active = False
        self.lines = []

    def append(self, line):
        assert self.active
        self.lines.append(line)


class LinesTarget(ExternalTarget[Lines, list[str]]):
    accessor = "state"
    holds = "lines"

    def __init__(self, data_dir, owner, component, declared):
        super().__init__(TableRef(declared.committed_as, declared.name), SCHEMA)
        self.place(component, data_dir)
        self._file = Path(declared.settings)
        self._marked = MarkedTarget(
            f"lines {self.name!r}", "file", self.ref.uri, owner, lambda: self._found()[0], self._replace, []
        )

    def lead(self, epoch, committed, recorded, live):
        self.make_directory()
        self.last = self._marked.lead(epoch, committed, recorded, live)

    def _write(self, staged, table, intent, epoch):
        self._marked.put(pq.read_table(pa.BufferReader(staged))["line"].to_pylist(), table, intent, epoch)

    def _new_handle(self, component, task, txid):
        return Lines()

    def _together(self, txid, tasks):
        return [line for _, handle in sorted(tasks.items()) for line in handle.lines]

    def _rows_of(self, ended):
        rows = [(line, txid) for txid, lines in ended.items() for line in lines]
        lines, txids = zip(*rows, strict=True) if rows else ((), ())
        return pa.table([lines, pa.array(txids, TXID.type)], schema=SCHEMA)

    def _found(self):
        found = json.loads(self._file.read_text()) if self._file.exists() else {"mark": None, "lines": []}
        return found["mark"] and Mark(*found["mark"]), found["lines"]

    def _replace(self, rows, expected, mark):
        with self._file.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            found, lines = self._found()
            if found != expected:
                return False
            made = self._file.with_suffix(".new")
            made.write_text(json.dumps({"mark": astuple(mark), "lines": [*lines, *rows]}))
            os.replace(made, self._file)
            return True


def lines_target(file, name="lines"):
    """Declare the target: the one line that a committer has of it."""
    return OwnTarget("x-lines", name, LinesTarget, str(file))
