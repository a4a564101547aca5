"""Words written to a table, and to a target of a kind that only this code knows.

``own_kind DATA_DIR [--spout KIND] [--without]`` runs it to the end of its input; ``--without``: without the target.
"""

import argparse
from pathlib import Path
from typing import Any

from own_target import lines_target

from scenarios.words import Split, lines, memory_spout, run_to_end
from txstorm import BatchBolt, Committer, SinkTable, TransactionalTopologyBuilder

TXIDS = 6


class Write(BatchBolt, Committer):
    out = SinkTable("out", {"word": str})

    def __init__(self, file: Path | None) -> None:
        self.lines = None if file is None else lines_target(file)

    def prepare(self, context, collector, attempt):
        self.context, self.words = context, []

    def execute(self, tuple):
        self.words.append(tuple["word"])

    def finish_batch(self):
        for word in sorted(self.words):
            self.context.sink("out").append(word)
            if self.lines is not None:
                self.context.state("lines").append(word)


def main(*argv: str) -> dict[str, Any]:
    parser = argparse.ArgumentParser()
    parser.add_argument("data_dir", type=Path)
    parser.add_argument("--spout", choices=("transactional", "opaque"), default="transactional")
    parser.add_argument("--without", action="store_true")
    options = parser.parse_args(argv)
    rows = lines(TXIDS)
    builder = TransactionalTopologyBuilder(
        "crash", "lines", memory_spout(options.spout, {0: rows[::2], 1: rows[1::2]}, ["line"], 2), 2
    )
    builder.set_bolt("split", Split(), 2).shuffle_grouping("lines")
    file = None if options.without else options.data_dir.with_name("lines.json")
    builder.set_bolt("write", Write(file)).global_grouping("split")
    settings = {"max_spout_pending": 3, "max_group_txids": 2}
    return run_to_end(builder.build_topology(), options.data_dir, settings, "local")
