"""Networks of probes from a few lines of text, and what must be true of what they saw.

One line a component: ``id kind parallelism : source[/stream] grouping, …``. Kinds are ``basic``, ``batch`` and
``commit``; with a star they work on record batches. The first line is the spout: ``id kind parallelism``.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import probe_bolts as probes

from txstorm import Topology, TransactionalTopologyBuilder, run
from txstorm.api.grouping import Grouping
from txstorm.api.names import DEFAULT_STREAM
from txstorm.state.read import read_sink, read_state, rows_json

KINDS = {
    "basic": probes.ProbeBasic,
    "basic*": probes.ProbeBasicRows,
    "batch": probes.ProbeBatch,
    "batch*": probes.ProbeBatchRows,
    "commit": probes.ProbeBatch,
    "commit*": probes.ProbeBatchRows,
}
KEYED = ("fields", "partial_key")


@dataclass(frozen=True)
class Source:
    component: str
    stream: str
    grouping: str


@dataclass(frozen=True)
class Node:
    id: str
    kind: str
    tasks: int
    inputs: tuple[Source, ...]


def parse(text: str) -> list[Node]:
    """The nodes of a network, the spout first."""
    return [_node(line) for line in text.strip().splitlines()]


def _node(line: str) -> Node:
    head, _, tail = line.strip().partition(":")
    id, kind, tasks = head.split()
    return Node(id, kind, int(tasks), tuple(_source(one) for one in tail.split(",") if one.strip()))


def _source(text: str) -> Source:
    name, grouping = text.split()
    component, _, stream = name.partition("/")
    return Source(component, stream or DEFAULT_STREAM, grouping)


def streams_of(nodes: Sequence[Node], id: str) -> dict[str, int]:
    """Stream → tasks of its direct subscribers (0: not direct) that node `id` has to emit to."""
    out: dict[str, int] = {}
    for node in nodes:
        for source in node.inputs:
            if source.component == id:
                direct = node.tasks if source.grouping == "direct" else 0
                out[source.stream] = min(out.get(source.stream, direct), direct)
    return out


def build(text: str, sizes: Sequence[int], **settings) -> Topology:
    """The topology of a network, with a witness behind every component."""
    nodes = parse(text)
    spout = nodes[0]
    source = probes.Numbers(streams_of(nodes, spout.id), list(sizes), spout.kind.endswith("*"))
    builder = TransactionalTopologyBuilder("net", spout.id, source, spout.tasks)
    for node in nodes[1:]:
        bolt = KINDS[node.kind](streams_of(nodes, node.id))
        add = builder.set_committer_bolt if node.kind.startswith("commit") else builder.set_bolt
        declarer = add(node.id, bolt, node.tasks)
        for one in node.inputs:
            declarer.grouping(one.component, _grouping(one.grouping), one.stream)
    witness = builder.set_committer_bolt("witness", probes.Witness())
    for node in nodes:
        witness.global_grouping(node.id, "log")
    builder.set_settings({"compact_on_stop": False, **settings})
    return builder.build_topology()


def _grouping(kind: str) -> Grouping:
    return Grouping(kind, ("key",) if kind in KEYED else (), probes.EvenAndZero() if kind == "custom" else None)


@dataclass(frozen=True)
class Seen:
    """What a run left behind: the witness's sink, row by row, and its state as JSON."""

    log: list[dict]
    totals: str


def observe(topology: Topology, engine, data_dir: Path) -> Seen:
    """Run a network to the end of its input."""
    handle = run(topology, engine=engine, data_dir=data_dir, available_now=True)
    handle.awaitTermination()
    return Seen(read_sink(data_dir, "log").to_pylist(), rows_json(read_state(data_dir, "totals")))


def check(text: str, sizes: Sequence[int], seen: Seen) -> None:
    """Every tuple of every stream was seen where its grouping sends it, in order, once."""
    nodes = {node.id: node for node in parse(text)}
    by_txid: dict[int, list[dict]] = defaultdict(list)
    for row in seen.log:
        by_txid[row["_txid"]].append(row)
    assert set(by_txid) <= set(range(1, len(sizes) + 1))
    homes: dict[tuple[str, Source], dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    for txid in range(1, len(sizes) + 1):
        rows = by_txid[txid]
        _check_finishes(nodes, rows, f"txid {txid}")
        for node in nodes.values():
            for source in node.inputs:
                _check_edge(nodes, node, source, rows, homes[node.id, source])


def _check_finishes(nodes: dict[str, Node], rows: list[dict], where: str) -> None:
    finished = Counter((row["component"], row["task"]) for row in rows if row["kind"] == "finish")
    batch_bolts = [node for node in nodes.values() if node.kind.rstrip("*") in ("batch", "commit")]
    expected = {(node.id, task): 1 for node in batch_bolts for task in range(node.tasks)}
    assert finished == Counter(expected), f"{where}: every task of every batch bolt finishes once"
    for row in _of(rows, "finish"):
        before = [one["seq"] for one in _of(rows, "see", component=row["component"], task=row["task"])]
        assert row["seq"] > max(before, default=0), f"{where}: {row} finished before all of its input was in"


def _of(rows: list[dict], kind: str, **values) -> list[dict]:
    wanted = {"kind": kind, **values}.items()
    return [row for row in rows if wanted <= row.items()]


def _check_edge(nodes, node: Node, source: Source, rows: list[dict], homes: dict[str, set[int]]) -> None:
    where = f"{source.component}/{source.stream} → {node.id} by {source.grouping}"
    emitted = _of(rows, "emit", component=source.component, stream=source.stream)
    seen = _of(rows, "see", component=node.id, other=source.component, stream=source.stream)
    arrived = {task: _of(seen, "see", task=task) for task in range(node.tasks)}
    local = source.grouping == "local_or_shuffle" and nodes[source.component].tasks == node.tasks
    local = local and node.id not in commit_phase(nodes.values())
    expected = _expected(source.grouping, nodes[source.component].tasks, local, emitted, arrived)
    order = {row["id"]: (row["task"], row["seq"]) for row in emitted}
    for task, got in arrived.items():
        assert Counter(row["id"] for row in got) == expected[task], where
        assert [order[row["id"]] for row in got] == sorted(order[row["id"]] for row in got), f"{where}: order"
        assert [row["seq"] for row in got] == sorted(row["seq"] for row in got)
        for row in got:
            assert row["peer"] == order[row["id"]][0], f"{where}: source task"
            homes[row["key"]].add(task)
    most = {"fields": 1, "partial_key": 2}.get(source.grouping, node.tasks)
    assert all(len(tasks) <= most for tasks in homes.values()), f"{where}: {homes}"


def _expected(grouping: str, sources: int, local: bool, emitted: list[dict], arrived) -> list[Counter]:
    """What each task must have seen, as the grouping is defined."""
    chosen = {
        "all": lambda row, task: True,
        "global": lambda row, task: task == 0,
        "direct": lambda row, task: row["peer"] == task,
        "custom": lambda row, task: task in _custom(row, len(arrived)),
    }.get(grouping)
    if chosen is not None:
        return [Counter(row["id"] for row in emitted if chosen(row, task)) for task in arrived]
    # The others send every tuple to one task; to which, is checked by the rules of `_check_edge` and here.
    assert Counter(row["id"] for rows in arrived.values() for row in rows) == Counter(row["id"] for row in emitted)
    if grouping not in KEYED:
        _check_spread(sources, local, arrived)
    return [Counter(row["id"] for row in arrived[task]) for task in arrived]


def _custom(row: dict, targets: int) -> list[int]:
    grouping = probes.EvenAndZero()
    grouping.prepare(row["component"], row["stream"], targets)
    return list(grouping.choose_tasks(row["task"], (row["key"], int(row["other"]), row["id"])))


def _check_spread(sources: int, local: bool, arrived: dict[int, list[dict]]) -> None:
    """Shuffling spreads the tuples of each source task evenly; a local one keeps them in their task."""
    for source in range(sources):
        counts = [sum(row["peer"] == source for row in rows) for rows in arrived.values()]
        if local:
            assert counts[source] == sum(counts)
        else:
            assert max(counts) - min(counts) <= 1, counts


def commit_phase(nodes: Iterable[Node]) -> set[str]:
    """The committers and all that can be reached from them."""
    inside: set[str] = set()
    for node in nodes:
        if node.kind.startswith("commit") or any(source.component in inside for source in node.inputs):
            inside.add(node.id)
    return inside
