"""Word count over lines: the topology that crash tests kill, with one, three or ten tables, maps or a topic.

``words DATA_DIR [--spout S] [--tables N] [--engine E] …`` runs it to the end of its input.
"""

import argparse
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from watched import Gathering

from txstorm import BasicBolt, Committer, KeyedState, MapState, TransactionalTopologyBuilder, run
from txstorm.clients.sql import SqlAlchemyBackend
from txstorm.operations.rewind import rewind
from txstorm.sinks import DeltaSink, KafkaSink
from txstorm.spouts import FileSpout, MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout

WORDS = ("the", "cow", "jumped", "over", "moon", "cat", "dog", "cat's", "a", "zebra")
SPOUTS = ("memory", "opaque", "file")
TXIDS = 8


def lines(txids: int) -> list[str]:
    return [" ".join(WORDS[(i * i + 3 * j) % len(WORDS)] for j in range(1 + i % 4)) for i in range(4 * txids)]


def batches(spout: str) -> list[list[str]]:
    rows = lines(TXIDS)
    halves = rows[::2], rows[1::2]
    if spout == "file":
        taken = [rows[i : i + 4] for i in range(0, len(rows), 4)]
    else:
        taken = [[line for half in halves for line in half[i : i + 2]] for i in range(0, len(halves[0]), 2)]
    return [" ".join(batch).split() for batch in taken]


class Split(BasicBolt):
    """A bolt that splits lines into words; raises for lines that begin with the word `poison`, if given."""

    fields = ("word",)

    def __init__(self, poison: str | None = None) -> None:
        self.poison = poison

    def execute(self, tuple, collector):
        for word in tuple["line"].split():
            collector.emit(word)
        if self.poison is not None and tuple["line"].startswith(self.poison):
            raise ValueError(f"a line with {self.poison!r}")


class Words(Gathering, Committer):
    """Base of the committers."""

    takes = "word"


class Counts(Words):
    state = KeyedState("counts", key={"word": str}, value={"n": int})

    def finish_batch(self):
        for word in self.taken:
            self.context.state("counts").update(word, lambda old: (old or 0) + 1)


class MergedCounts(Counts):
    state = replace(Counts.state, layout="merge")


class Totals(Words):
    state = KeyedState("totals", key={}, value={"words": int, "letters": int, "txid": int})

    def finish_batch(self):
        totals = self.context.state("totals")
        old = totals.get((), {"words": 0, "letters": 0})
        words, letters = old["words"] + len(self.taken), old["letters"] + sum(map(len, self.taken))
        totals.put((), {"words": words, "letters": letters, "txid": self.attempt.txid})


class Lengths(Words):
    """A committer with six states: counts of the words longer than 0 to 5 letters."""

    def __init__(self) -> None:
        self.states = [KeyedState(f"longer_{i}", key={"word": str}, value={"n": int}) for i in range(6)]

    def finish_batch(self):
        for i in range(6):
            longer = Counter(word for word in self.taken if len(word) > i)
            self.context.state(f"longer_{i}").update_many(longer, lambda old, n: (old or 0) + n)


class Maps(Words):
    """A committer that counts in two maps of a database; even txids remove words that begin with z from one of them."""

    def __init__(self, url: str) -> None:
        words, lengths = SqlAlchemyBackend(url, "words"), SqlAlchemyBackend(url, "lengths")
        self.maps = [MapState("words", words), MapState("lengths", lengths, "transactional", allow_opaque_spout=True)]

    def finish_batch(self):
        words, lengths, counts = self.context.state("words"), self.context.state("lengths"), Counter(self.taken)
        words.update_many(counts, lambda old, n: (old or 0) + n)
        for word, n in counts.items():
            lengths.update(len(word), lambda old, n=n: (old or 0) + n)
            if word.startswith("z") and self.attempt.txid % 2 == 0:
                words.remove(word)


def map_rows(url: str) -> dict[str, dict[object, object]]:
    found = {}
    for table, keys in (("words", [f'"{word}"' for word in WORDS]), ("lengths", [str(n) for n in range(1, 9)])):
        backend = SqlAlchemyBackend(url, table)
        rows = backend.multi_get(keys)
        found[table] = {key: row.value for key, row in zip(keys, rows, strict=True) if row and row.value is not None}
        backend.dispose()
    return found


def expected_map_rows(spout: str) -> dict[str, dict[str, int]]:
    """Return the expected rows after an undisturbed run of the scenario with this spout."""
    words: dict[str, int] = {}
    lengths: dict[str, int] = {}
    for txid, batch in enumerate(batches(spout), start=1):
        for word in batch:
            words[f'"{word}"'] = words.get(f'"{word}"', 0) + 1
            lengths[str(len(word))] = lengths.get(str(len(word)), 0) + 1
        if txid % 2 == 0:
            words = {word: n for word, n in words.items() if not (word.startswith('"z') and word.strip('"') in batch)}
    return {"words": words, "lengths": lengths}


def spout(kind: str, txids: int, data_dir: Path) -> Any:
    rows = lines(txids)
    if kind == "file":
        path = data_dir.with_name("lines.txt")
        if not path.exists():
            path.write_text("\n".join(rows) + "\n")
        return FileSpout(path, max_batch_rows=4)
    return memory_spout(kind, {0: rows[::2], 1: rows[1::2]}, ["line"], 2)


def memory_spout(kind: str, partitions: Mapping[int, Sequence[Any]], fields: Sequence[str], take: Any) -> Any:
    """Build a spout over rows in memory: an opaque one, or one that replays the same rows."""
    made = OpaqueMemoryTransactionalSpout if kind == "opaque" else MemoryTransactionalSpout
    return made(partitions, fields, take=take)


def topology(
    source: Any,
    tables: int,
    maps: str | None = None,
    poison: str | None = None,
    kafka: list[str] | None = None,
    layout: str = "changes",
) -> Any:
    builder = TransactionalTopologyBuilder("crash", "lines", source, 2)
    builder.set_bolt("split", Split(poison), 2).shuffle_grouping("lines")
    builder.set_bolt("counts", MergedCounts() if layout == "merge" else Counts(), 2).fields_grouping("split", ["word"])
    if tables >= 3:
        builder.set_committer_bolt("totals", Totals()).global_grouping("split")
        builder.set_bolt("words", DeltaSink("words", {"word": str}), 2).shuffle_grouping("split")
    if tables == 10:
        builder.set_bolt("lengths", Lengths(), 2).fields_grouping("split", ["word"])
        builder.set_bolt("kept", DeltaSink("lines", {"line": str}), 2).shuffle_grouping("lines")
    if maps:
        builder.set_bolt("maps", Maps(maps)).global_grouping("split")
    if kafka:
        brokers, topic = kafka
        sink = KafkaSink("sent", topic, brokers, key="word", progress_topic=f"{topic}-marks")
        builder.set_bolt("sent", sink, 2).shuffle_grouping("split")
    return builder.build_topology()


def run_to_end(
    topology: Any, data_dir: Path, settings: Mapping[str, Any], engine: str, **options: Any
) -> dict[str, int]:
    """Run `topology` to the end of what its source holds now; return its progress."""
    handle = run(
        topology,
        engine=engine,
        data_dir=data_dir,
        settings=settings,
        available_now=True,
        # Without it, `run` looks at every attribute of every module: a fifth of a short run after a fork.
        target=f"scenarios.{topology.id}",
        **options,
    )
    handle.awaitTermination()
    now = handle.progress
    return {"committed": now.committed, "txids": now.txids, "replays": now.replays}


def main(*argv: str) -> dict[str, Any]:
    """Run the topology once, or with ``--rewind`` rewind it once; return the result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("data_dir", type=Path)
    parser.add_argument("--spout", choices=SPOUTS, default="memory")
    parser.add_argument("--tables", type=int, choices=(1, 3, 10), default=3)
    parser.add_argument("--maps", metavar="URL")
    parser.add_argument("--kafka", nargs=2, metavar=("BROKERS", "TOPIC"))
    parser.add_argument("--engine", choices=("local", "spark"), default="local")
    parser.add_argument("--txids", type=int, default=TXIDS)
    parser.add_argument("--poison")
    parser.add_argument("--layout", default="changes")
    parser.add_argument("--rewind", type=int, metavar="TXID")
    parser.add_argument("--want", type=json.loads)
    parser.add_argument("--set", action="append", default=[])
    options = parser.parse_args(argv)
    if options.rewind is not None:
        return rewind(options.data_dir, options.rewind)
    settings = {"max_spout_pending": 4, "max_pack_txids": 2, "max_group_txids": 2}
    settings |= dict(one.split("=", 1) for one in options.set)
    source = spout(options.spout, options.txids, options.data_dir)
    built = topology(source, options.tables, options.maps, options.poison, options.kafka, options.layout)
    return run_to_end(built, options.data_dir, settings, options.engine, want=options.want)
