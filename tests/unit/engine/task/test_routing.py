"""Groupings route rows as Storm's do, and identically on all paths."""

from collections import Counter, defaultdict
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from txstorm.api.output import Grouping
from txstorm.engine.arrow import batch_of_rows, rows_of_batch
from txstorm.engine.task.routing import Router, check_target
from txstorm.errors import EmitError
from txstorm.plan.stages import Edge

Row = tuple[Any, ...]


def edge(kind: str, targets: int, *, fields: tuple[str, ...] = (), custom: Any = None, local: bool = False) -> Edge:
    grouping = Grouping(kind, fields, custom)
    return Edge(0, "words", "default", "count", grouping, 1, targets, local=local, boundary=False)


def routed(made: Edge, rows: list[Row], *, txid: int = 1, task: int = 0) -> dict[int, list[Row]]:
    fields = tuple("abc"[: len(rows[0])])
    found: dict[int, list[Row]] = defaultdict(list)
    for target, batch in Router(made, txid, task).route(batch_of_rows(rows, fields)):
        found[target] += rows_of_batch(batch)
    return dict(found)


def homes_of(made: Edge, rows: list[Row], columns: int = 1, txids: int = 1) -> dict[Row, set[int]]:
    """Return the tasks to which the rows of each key are routed in several txids; keys are the first columns."""
    homes: dict[Row, set[int]] = defaultdict(set)
    for txid in range(txids):
        for target, found in routed(made, rows, txid=txid, task=txid % 3).items():
            for row in found:
                homes[row[:columns]].add(target)
    return homes


ROWS = [(f"word-{n % 100}", n) for n in range(1000)]


@pytest.mark.parametrize("kind", ["shuffle", "none", "local_or_shuffle"])
def test_shuffling_is_even_and_keeps_the_order(kind: str) -> None:
    found = routed(edge(kind, 3), ROWS)
    sizes = [len(rows) for rows in found.values()]
    assert sum(sizes) == 1000
    assert max(sizes) - min(sizes) <= 1
    assert all(rows == sorted(rows, key=lambda row: row[1]) for rows in found.values())


def test_shuffling_starts_at_different_tasks_and_continues_across_record_batches() -> None:
    router = Router(edge("shuffle", 4), 1, 0)
    counts: Counter[int] = Counter()
    for row in ROWS[:42]:
        [(target, _)] = router.route(batch_of_rows([row], ("a", "b")))
        counts[target] += 1
    assert max(counts.values()) - min(counts.values()) <= 1
    made = edge("shuffle", 4)
    first = Counter(next(iter(routed(made, ROWS[:1], txid=t, task=s))) for t in range(50) for s in range(4))
    assert set(first) == {0, 1, 2, 3}
    assert min(first.values()) > 20


@pytest.mark.parametrize("kind", [*Grouping.KINDS[:5], "partial_key"])
def test_routing_is_a_function_of_txid_task_and_rows(kind: str) -> None:
    made = edge(kind, 5, fields=("a",))
    assert routed(made, ROWS, txid=7, task=2) == routed(made, ROWS, txid=7, task=2)


def test_all_global_local_and_custom_groupings_choose_any_number_of_existing_tasks() -> None:
    assert routed(edge("all", 3), ROWS) == dict.fromkeys(range(3), ROWS)
    assert routed(edge("global", 3), ROWS) == {0: ROWS}
    assert routed(edge("local_or_shuffle", 3, local=True), ROWS, task=2) == {2: ROWS}
    assert routed(edge("fields", 1, fields=("a",)), ROWS) == {0: ROWS}
    found = routed(edge("custom", 4, custom=ByLength()), [("aaa", 1), ("a", 2)], task=3)
    assert found == {0: [("a", 2)], 2: [("aaa", 1)], 3: [("aaa", 1), ("a", 2)]}
    with pytest.raises(EmitError, match=r"custom ByLength grouping sent .* to task 9"):
        routed(edge("custom", 4, custom=ByLength()), [("a" * 10, 1)])


def test_a_key_reaches_one_task_or_two_by_partial_keys_regardless_of_arrow_types() -> None:
    made = edge("fields", 4, fields=("a",))
    assert all(len(tasks) == 1 for tasks in homes_of(made, ROWS, txids=5).values())
    assert min(len(rows) for rows in routed(made, ROWS).values()) > 0.5 * 1000 / 4
    by_two = homes_of(edge("fields", 8, fields=("b", "a")), [(n % 3, n % 5, n) for n in range(300)], 2)
    assert len(by_two) == 15
    assert all(len(tasks) == 1 for tasks in by_two.values())
    assert len({next(iter(tasks)) for tasks in by_two.values()}) > 4
    made = edge("partial_key", 7, fields=("a",))
    homes = homes_of(made, ROWS, txids=5)
    assert {len(tasks) for tasks in homes.values()} <= {1, 2}
    assert sum(len(tasks) == 2 for tasks in homes.values()) > 60
    shares = [len(rows) for rows in routed(made, [("the", n) for n in range(1000)]).values()]
    assert len(shares) == 2
    assert min(shares) > 420
    made = edge("fields", 64, fields=("a",))
    same = [
        [pa.array([7], kind) for kind in (pa.int64(), pa.int8(), pa.uint32())],
        [pa.array(["x"], kind) for kind in (pa.string(), pa.large_string())] + [pa.array(["x"]).dictionary_encode()],
        [pa.array([Decimal("1.50")], pa.decimal128(10, scale)) for scale in (2, 5)],
        [pa.array([0.5], kind) for kind in (pa.float64(), pa.float32())],
        [pa.array([None], kind) for kind in (pa.null(), pa.string(), pa.int64())],
    ]
    for columns in same:
        batches = [pa.record_batch([column], ["a"]) for column in columns]
        assert len({next(Router(made, 1, 0).route(batch))[0] for batch in batches}) == 1, columns
    numpy = batch_of_rows([(np.int64(7),)], ("a",))
    assert next(Router(made, 1, 0).route(numpy))[0] == next(iter(routed(made, [(7,)])))


class ByLength:
    def prepare(self, component: str, stream: str, targets: int) -> None:
        assert (component, stream, targets) == ("words", "default", 4)

    def choose_tasks(self, source_task: int, values: Any) -> list[int]:
        return [len(values[0]) - 1, source_task]


@pytest.mark.parametrize("target", [4, -1, "1", None, 1.0])
def test_an_invalid_direct_target_is_rejected(target: object) -> None:
    with pytest.raises(EmitError, match=r"words: .*task .* of 'count'; its tasks are 0 to 3"):
        check_target(edge("direct", 4), target)
