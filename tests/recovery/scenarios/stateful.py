"""Stateful word count: the topology that crash tests kill in its hooks, with states in a table, Redis or files.

``stateful DATA_DIR PROVIDER [--conf JSON] [--take N] [--hook METHOD:ACTION:TXID]`` runs it to the end of its input.
`FileStateProvider` is a provider as a user would write it.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scenarios.words import Split, lines, memory_spout, run_to_end
from txstorm import StatefulBolt, TransactionalTopologyBuilder, faults
from txstorm.errors import FencedError
from txstorm.stateful import KeyValueState, StateProvider

TXIDS = 6
PROVIDERS = {"delta": "delta", "redis": "redis", "file": "scenarios.stateful:FileStateProvider"}


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
            raise RuntimeError(f"injected in {method}")


class Count(Hooked, StatefulBolt):
    """Counts words."""

    def init_state(self, state):
        self.counts = state

    def execute(self, tuple):
        self.counts.put(tuple["word"], self.counts.get(tuple["word"], 0) + 1)


class FileStateProvider(StateProvider):
    """States in JSON files, one each, in the directory ``conf["path"]``."""

    def new_state(self, namespace, conf, context):
        return FileState(Path(conf["path"]) / namespace, context)


class FileState(KeyValueState):
    """Key-value state in a file, which each step replaces; it has the rows and marks of what is committed and prepared."""

    def __init__(self, path, context):
        path.parent.mkdir(exist_ok=True)
        self.path, self.written, self.holds_prepared = path, {}, False
        self.timeline, self.epoch = (0, self.read()["epoch"]) if context is None else (context.timeline, context.epoch)
        with self.changed() as file:
            file["epoch"] = self.epoch

    def read(self):
        empty = {"epoch": 0, "rows": {}, "place": None, "prepared": {}, "prepared_place": None}
        return json.loads(self.path.read_text()) if self.path.exists() else empty

    @contextmanager
    def changed(self) -> Iterator[dict[str, Any]]:
        """Change the file; a coordinator with a newer epoch cannot open it meanwhile, and must not have opened it."""
        with open(f"{self.path}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            file = self.read()
            if file["epoch"] > self.epoch:
                raise FencedError(f"state {self.path.name!r}: epoch {file['epoch']} has taken over from {self.epoch}")
            yield file
            new = Path(f"{self.path}.new")
            new.write_text(json.dumps(file))
            new.replace(self.path)

    def rows(self):
        """Return the rows as this task sees them; None stands for a deleted one."""
        file = self.read()
        return file["rows"] | (file["prepared"] if self.holds_prepared else {}) | self.written

    def put(self, key, value):
        self.written[key] = json.dumps(value)

    def get(self, key, default=None):
        found = self.rows().get(key)
        return default if found is None else json.loads(found)

    def delete(self, key):
        old = self.get(key)
        self.written[key] = None
        return old

    def __iter__(self):
        yield from ((key, json.loads(value)) for key, value in self.rows().items() if value is not None)

    def prepare_commit(self, txid):
        with self.changed() as file:
            place, prepared, now = file["place"], file["prepared_place"], [self.timeline, txid]
            if prepared not in (None, now) or (place and place >= now):
                raise ValueError(f"{txid} after {place} and {prepared}")
            file["prepared"] = (file["prepared"] if self.holds_prepared else {}) | self.written
            file["prepared_place"] = now
        self.written, self.holds_prepared = {}, True

    def commit(self, txid=None):
        with self.changed() as file:
            if file["prepared_place"] != [self.timeline, txid]:
                raise ValueError(f"{txid} is not prepared, but {file['prepared_place']}")
            rows = file["rows"] | file["prepared"]
            file["rows"] = {key: value for key, value in rows.items() if value is not None}
            file |= {"place": file["prepared_place"], "prepared": {}, "prepared_place": None}
        self.holds_prepared = False

    def rollback(self):
        with self.changed() as file:
            file |= {"prepared": {}, "prepared_place": None}
        self.written, self.holds_prepared = {}, False

    def last_committed(self):
        place = self.read()["place"]
        return place[1] if place and place[0] == self.timeline else None

    def close(self):
        pass


def topology(data_dir: Path, kind: str, take: int, hook: str | None) -> Any:
    rows = lines(TXIDS)
    source = memory_spout(kind, {0: rows[::2], 1: rows[1::2]}, ["line"], take)
    builder = TransactionalTopologyBuilder("crash", "lines", source, 2)
    builder.set_bolt("split", Split(), 2).shuffle_grouping("lines")
    builder.set_bolt("count", Count(data_dir.with_name("hooks"), hook), 2).fields_grouping("split", ["word"])
    return builder.build_topology()


def arguments(argv: Sequence[str], stores: Iterable[str] = PROVIDERS) -> argparse.Namespace:
    """Parse the arguments of a scenario with state in one of `stores`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("data_dir", type=Path)
    parser.add_argument("provider", choices=list(stores))
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
