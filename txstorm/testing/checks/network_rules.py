"""Rules for runs of probe networks: groupings, order of tuples, and one `finish_batch` call per task."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from txstorm.api.names import counted
from txstorm.testing.checks import probes
from txstorm.testing.checks.networks import KEYED, Node, Seen, Source, commit_phase, parse
from txstorm.testing.checks.rules import CheckFailed, expect

Row = dict[str, Any]
Rows = list[Row]


def check_seen(text: str, sizes: Sequence[int], seen: Seen) -> None:
    """Raise `CheckFailed` unless every tuple arrived once, in order, at the tasks determined by its grouping."""
    nodes = {node.id: node for node in parse(text)}
    by_txid: dict[int, Rows] = defaultdict(list)
    for row in seen.log:
        by_txid[row["_txid"]].append(row)
    txids = range(1, len(sizes) + 1)
    expect("txids beyond the input", set(), set(by_txid) - set(txids))
    homes: dict[tuple[str, Source], dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    for txid in txids:
        rows = by_txid[txid]
        _check_finishes(nodes, rows, f"txid {txid}")
        for node in nodes.values():
            for source in node.inputs:
                where = f"txid {txid}, {source.component}/{source.stream} → {node.id} by {source.grouping}"
                _check_edge(nodes, node, source, rows, homes[node.id, source], where)


def _check_finishes(nodes: Mapping[str, Node], rows: Rows, where: str) -> None:
    finished = Counter((row["component"], row["task"]) for row in rows if row["kind"] == "finish")
    wanted = Counter((node.id, task) for node in nodes.values() if node.finishes for task in range(node.tasks))
    expect(f"{where}: every task of every batch bolt finishes once", wanted, finished)
    for row in _of(rows, "finish"):
        before = [one["seq"] for one in _of(rows, "see", component=row["component"], task=row["task"])]
        if row["seq"] <= max(before, default=0):
            raise CheckFailed(f"{where}: {row['component']}[{row['task']}] finished before all of its input was in")


def _of(rows: Rows, kind: str, **values: Any) -> Rows:
    wanted = {"kind": kind, **values}.items()
    return [row for row in rows if wanted <= row.items()]


def _check_edge(
    nodes: Mapping[str, Node], node: Node, source: Source, rows: Rows, homes: dict[str, set[int]], where: str
) -> None:
    emitted = _of(rows, "emit", component=source.component, stream=source.stream)
    seen = _of(rows, "see", component=node.id, other=source.component, stream=source.stream)
    arrived = {task: _of(seen, "see", task=task) for task in range(node.tasks)}
    for task, wanted in _wanted(nodes, node, source, emitted, arrived, where).items():
        got = Counter(row["id"] for row in arrived[task])
        expect(f"{where}: what task {task} saw", wanted, got)
    order = {row["id"]: (row["task"], row["seq"]) for row in emitted}
    for task, got_rows in arrived.items():
        came = [order[row["id"]] for row in got_rows]
        expect(f"{where}: the order in which task {task} saw it (source task, number)", sorted(came), came)
        expect(f"{where}: source tasks", [one for one, _ in came], [row["peer"] for row in got_rows])
        expect(f"{where}: the order in which task {task} told of it", sorted(_numbers(got_rows)), _numbers(got_rows))
        for row in got_rows:
            homes[row["key"]].add(task)
    most = {"fields": 1, "partial_key": 2}.get(source.grouping, node.tasks)
    strays = {key: tasks for key, tasks in homes.items() if len(tasks) > most}
    expect(f"{where}: keys that more than {counted(most, 'task')} saw", {}, strays)


def _wanted(
    nodes: Mapping[str, Node], node: Node, source: Source, emitted: Rows, arrived: Mapping[int, Rows], where: str
) -> dict[int, Counter[str]]:
    """Return the tuple ids that the grouping requires each task to have seen; empty if the grouping leaves a choice."""
    chosen: Callable[[Row, int], bool] | None = {
        "all": lambda row, task: True,
        "global": lambda row, task: task == 0,
        "direct": lambda row, task: row["peer"] == task,
        "custom": lambda row, task: task in _custom(row, node.tasks),
    }.get(source.grouping)
    if chosen is not None:
        return {task: Counter(row["id"] for row in emitted if chosen(row, task)) for task in arrived}
    # The other groupings send every tuple to one task; the choice is checked in `_check_edge` and below.
    got = Counter(row["id"] for rows in arrived.values() for row in rows)
    expect(f"{where}: what all tasks saw", Counter(row["id"] for row in emitted), got)
    if source.grouping not in KEYED:
        _check_spread(nodes, node, source, arrived, where)
    return {}


def _numbers(rows: Rows) -> list[int]:
    return [row["seq"] for row in rows]


def _custom(row: Row, targets: int) -> list[int]:
    grouping = probes.EvenAndZero()
    grouping.prepare(row["component"], row["stream"], targets)
    return grouping.choose_tasks(row["task"], (row["key"], int(row["other"]), row["id"]))


def _check_spread(
    nodes: Mapping[str, Node], node: Node, source: Source, arrived: Mapping[int, Rows], where: str
) -> None:
    """Check that shuffling spreads the tuples of each source task evenly, or, if local, keeps them in their task."""
    tasks = nodes[source.component].tasks
    local = source.grouping == "local_or_shuffle" and tasks == node.tasks
    local = local and node.id not in commit_phase(nodes.values())
    for task in range(tasks):
        counts = [sum(row["peer"] == task for row in rows) for rows in arrived.values()]
        if local:
            expect(f"{where}: tuples of task {task} that stayed with it", sum(counts), counts[task])
        elif max(counts) - min(counts) > 1:
            msg = f"{where}: tuples of source task {task} per task: expected them spread evenly, got {counts}"
            raise CheckFailed(msg)
