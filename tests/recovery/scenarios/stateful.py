"""Stateful word count: the topology that crash tests kill in its hooks, with states in a table or in Redis.

``stateful DATA_DIR PROVIDER [--conf JSON] [--take N] [--hook METHOD:ACTION:TXID]`` runs it to the end of its input.
"""

import argparse
import os
import signal
import time
from pathlib import Path
from typing import Any

from scenarios.words import Split, lines, memory_spout, run_to_end
from txstorm import StatefulBolt, TransactionalTopologyBuilder, faults

TXIDS = 6


class Count(StatefulBolt):
    """Counts words, logs its hooks, and dies in one of them the first time."""

    def __init__(self, log: Path, hook: str | None) -> None:
        self.log = log
        self.hook = hook.split(":") if hook else None

    def init_state(self, state):
        self.counts = state

    def execute(self, tuple):
        self.counts.put(tuple["word"], self.counts.get(tuple["word"], 0) + 1)

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


def topology(data_dir: Path, kind: str, take: int, hook: str | None) -> Any:
    rows = lines(TXIDS)
    source = memory_spout(kind, {0: rows[::2], 1: rows[1::2]}, ["line"], take)
    builder = TransactionalTopologyBuilder("crash", "lines", source, 2)
    builder.set_bolt("split", Split(), 2).shuffle_grouping("lines")
    builder.set_bolt("count", Count(data_dir.with_name("hooks"), hook), 2).fields_grouping("split", ["word"])
    return builder.build_topology()


def main(*argv: str) -> dict[str, Any]:
    parser = argparse.ArgumentParser()
    parser.add_argument("data_dir", type=Path)
    parser.add_argument("provider", choices=("delta", "redis"))
    parser.add_argument("--conf", default="{}")
    parser.add_argument("--spout", choices=("transactional", "opaque"), default="transactional")
    parser.add_argument("--take", type=int, default=2)
    parser.add_argument("--hook")
    parser.add_argument("--set", action="append", default=[])
    options = parser.parse_args(argv)
    settings = {"max_spout_pending": 3, "max_group_txids": 2, "state_provider": options.provider}
    settings |= {"state_provider_config": options.conf} | dict(one.split("=", 1) for one in options.set)
    made = topology(options.data_dir, options.spout, options.take, options.hook)
    return run_to_end(made, options.data_dir, settings, "local")
