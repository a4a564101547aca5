"""Stateful word count: the topology that crash tests kill in its hooks, with states in a table, Redis or SQLite.

``stateful DATA_DIR PROVIDER [--conf JSON] [--take N] [--hook METHOD:ACTION:TXID]`` runs it to the end of its input.
`SqliteStateProvider` is a provider as a user would write it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scenarios.words import Split, lines, run_to_end
from txstorm import StatefulBolt, TransactionalTopologyBuilder, faults
from txstorm.errors import FencedError
from txstorm.spouts import MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout
from txstorm.stateful import KeyValueState, StateProvider

TXIDS = 6


class Hooked:
    """Hooks of a stateful bolt: it logs them, and dies in one of them the first time."""

    def __init__(self, log: Path, hook: str | None) -> None:
        self.log = log
        self.hook = hook.split(":") if hook else None

    def pre_prepare(self, txid):
        self.txid = txid
        self.called("pre_prepare", txid)

    def pre_commit(self, txid):
        self.called("pre_commit", txid)

    def pre_rollback(self):
        self.called("pre_rollback", getattr(self, "txid", 0))

    def called(self, method, txid):
        with self.log.open("a") as log:
            log.write(f"{method} {txid}\n")
        if self.hook is None:
            return
        name, action, wanted = self.hook
        died = self.log.with_suffix(".died")
        if (name, int(wanted)) == (method, txid) and not died.exists():
            died.touch()
            faults.point(f"hook.{method}")  # for the trace
            if action == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if action == "hang":
                time.sleep(3600)
            msg = f"injected in {method}"
            raise RuntimeError(msg)


class Count(Hooked, StatefulBolt):
    """Counts words."""

    def init_state(self, state):
        self.counts = state

    def execute(self, tuple):
        self.counts.put(tuple["word"], self.counts.get(tuple["word"], 0) + 1)


class SqliteStateProvider(StateProvider):
    """States in one SQLite file, ``conf["path"]``."""

    def new_state(self, namespace, conf, context):
        return SqliteState(conf["path"], namespace, context)


class SqliteState(KeyValueState):
    """Key-value state in SQLite: writes go to memory, prepared ones to a table of their own."""

    def __init__(self, path, name, context):
        self.name, self.written, self.holds_prepared = name, {}, False
        self.timeline, self.epoch = (0, 0) if context is None else (context.timeline, context.epoch)
        self.db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self.db.execute("PRAGMA synchronous = FULL")
        self.db.execute("CREATE TABLE IF NOT EXISTS data (name, key, value, PRIMARY KEY (name, key))")
        self.db.execute("CREATE TABLE IF NOT EXISTS prepared (name, key, value, PRIMARY KEY (name, key))")
        self.db.execute("CREATE TABLE IF NOT EXISTS mark (name PRIMARY KEY, epoch, place, prepared)")
        self.db.execute("INSERT OR IGNORE INTO mark VALUES (?, 0, NULL, NULL)", (name,))
        if context is None:
            (self.epoch,) = self.db.execute("SELECT epoch FROM mark WHERE name = ?", (name,)).fetchone()
        with self.transaction():
            self.db.execute("UPDATE mark SET epoch = ? WHERE name = ?", (self.epoch, name))

    def transaction(self):
        return _Transaction(self)

    def mark(self):
        """Return the places last committed and prepared, as (timeline, txid); None for none."""
        place, prepared = self.db.execute("SELECT place, prepared FROM mark WHERE name = ?", (self.name,)).fetchone()
        return (json.loads(place) if place else None), (json.loads(prepared) if prepared else None)

    def put(self, key, value):
        self.written[key] = json.dumps(value)

    def get(self, key, default=None):
        found = self.text(key)
        return default if found is None else json.loads(found)

    def text(self, key):
        if key in self.written:
            return self.written[key]
        if self.holds_prepared:
            row = self.db.execute("SELECT value FROM prepared WHERE name = ? AND key = ?", (self.name, key)).fetchone()
            if row:
                return row[0]
        row = self.db.execute("SELECT value FROM data WHERE name = ? AND key = ?", (self.name, key)).fetchone()
        return row and row[0]

    def delete(self, key):
        old = self.get(key)
        self.written[key] = None
        return old

    def __iter__(self):
        found = dict(self.db.execute("SELECT key, value FROM data WHERE name = ?", (self.name,)))
        if self.holds_prepared:
            found |= dict(self.db.execute("SELECT key, value FROM prepared WHERE name = ?", (self.name,)))
        for key, value in (found | self.written).items():
            if value is not None:
                yield key, json.loads(value)

    def prepare_commit(self, txid):
        with self.transaction():
            place, prepared = self.mark()
            if prepared not in (None, [self.timeline, txid]) or (place and place >= [self.timeline, txid]):
                raise ValueError(f"{txid} after {place} and {prepared}")
            if not self.holds_prepared:
                self.db.execute("DELETE FROM prepared WHERE name = ?", (self.name,))
            rows = [(self.name, key, value) for key, value in self.written.items()]
            self.db.executemany("INSERT OR REPLACE INTO prepared VALUES (?, ?, ?)", rows)
            mark = json.dumps([self.timeline, txid])
            self.db.execute("UPDATE mark SET prepared = ? WHERE name = ?", (mark, self.name))
        self.written, self.holds_prepared = {}, True

    def commit(self, txid=None):
        with self.transaction():
            prepared = self.mark()[1]
            if prepared != [self.timeline, txid]:
                raise ValueError(f"{txid} is not prepared, but {prepared}")
            self.db.execute(
                "INSERT OR REPLACE INTO data SELECT * FROM prepared WHERE name = ? AND value IS NOT NULL", (self.name,)
            )
            gone = "SELECT key FROM prepared WHERE name = ? AND value IS NULL"
            self.db.execute(f"DELETE FROM data WHERE name = ? AND key IN ({gone})", (self.name, self.name))
            self.db.execute("DELETE FROM prepared WHERE name = ?", (self.name,))
            place = json.dumps(prepared)
            self.db.execute("UPDATE mark SET place = ?, prepared = NULL WHERE name = ?", (place, self.name))
        self.holds_prepared = False

    def rollback(self):
        with self.transaction():
            self.db.execute("DELETE FROM prepared WHERE name = ?", (self.name,))
            self.db.execute("UPDATE mark SET prepared = NULL WHERE name = ?", (self.name,))
        self.written, self.holds_prepared = {}, False

    def last_committed(self):
        place = self.mark()[0]
        return place[1] if place and place[0] == self.timeline else None

    def close(self):
        self.db.close()


class _Transaction:
    """A transaction in which no newer coordinator can open the state."""

    def __init__(self, state: SqliteState) -> None:
        self.state = state

    def __enter__(self) -> None:
        db, name = self.state.db, self.state.name
        db.execute("BEGIN IMMEDIATE")
        (epoch,) = db.execute("SELECT epoch FROM mark WHERE name = ?", (name,)).fetchone()
        if epoch > self.state.epoch:
            db.execute("ROLLBACK")
            msg = f"state {name!r}: epoch {epoch} has taken over from {self.state.epoch}"
            raise FencedError(msg)

    def __exit__(self, kind: Any, *error: Any) -> None:
        self.state.db.execute("COMMIT" if kind is None else "ROLLBACK")


PROVIDERS = {"delta": "delta", "redis": "redis", "sqlite": "scenarios.stateful:SqliteStateProvider"}


def topology(data_dir: Path, kind: str, take: int, hook: str | None) -> Any:
    rows = lines(TXIDS)
    made = MemoryTransactionalSpout if kind == "transactional" else OpaqueMemoryTransactionalSpout
    source = made({0: rows[::2], 1: rows[1::2]}, ["line"], take=take)
    builder = TransactionalTopologyBuilder("crash", "lines", source, 2)
    builder.set_bolt("split", Split(), 2).shuffle_grouping("lines")
    builder.set_bolt("count", Count(data_dir.with_name("hooks"), hook), 2).fields_grouping("split", ["word"])
    return builder.build_topology()


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments of a scenario with a stateful bolt."""
    parser = argparse.ArgumentParser()
    parser.add_argument("data_dir", type=Path)
    parser.add_argument("provider", choices=list(PROVIDERS))
    parser.add_argument("--conf", default="{}")
    parser.add_argument("--spout", choices=("transactional", "opaque"), default="transactional")
    parser.add_argument("--take", type=int, default=2)
    parser.add_argument("--hook")
    parser.add_argument("--set", action="append", default=[])
    return parser.parse_args(argv)


def run_stateful(topology: Any, options: argparse.Namespace, **more: Any) -> dict[str, Any]:
    """Run a topology to the end of its input, with states of the provider of `options`; return its progress."""
    settings = {"max_spout_pending": 3, "max_group_txids": 2, "state_provider": PROVIDERS[options.provider]}
    settings |= {"state_provider_config": options.conf} | dict(one.split("=", 1) for one in options.set)
    return run_to_end(topology, options.data_dir, settings, "local", **more)


def main(*argv: str) -> dict[str, Any]:
    """Run the topology once; return its progress."""
    options = arguments(argv)
    return run_stateful(topology(options.data_dir, options.spout, options.take, options.hook), options)
