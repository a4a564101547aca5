"""Cells of the crash grid: fault points × kinds of fault × changes of the source at the fault × pipeline depths."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

POINTS: Mapping[str, tuple[str, int, int]] = {
    # point → the fault point, which passage of it, and how many transactions are decided then, one at a time
    "before-p1": ("p1.before", 2, 1),
    "after-p1": ("p1.after", 2, 1),
    "before-p2": ("p2.before", 2, 1),
    "after-p3": ("p3.after", 3, 1),  # two tasks process each transaction
    "before-p4": ("p4.before", 2, 1),
    "after-p4": ("p4.after", 2, 1),
    "before-p5": ("p5.before", 2, 1),
    "after-p5": ("p5.after", 2, 1),
    "before-p6": ("p6.before", 2, 1),
    "after-p6": ("p6.after", 2, 2),
    **{
        f"p7-table{table}-{how}": (f"p7.{table}.{point}", 2, 2)
        for table in (1, 2, 3)
        for how, point in (("unwritten", "before"), ("unanswered", "written"), ("answered", "after"))
    },
    "before-p8": ("p8.before", 2, 2),
    "after-p8": ("p8.after", 2, 2),
    "meta-deleted": ("ledger.meta", 1, 2),
    "intent-deleted": ("ledger.intent", 1, 2),
    "amid-sweep": ("sweep.removed", 2, 6),
}
FAULTS = ("kill", "exception", "hang")
SOURCES = ("transactional", "same", "grows", "shrinks")
"""Transactional, or opaque and after the fault with batches as before, with larger ones, or with smaller ones."""
DEPTHS = (1, 4)


@dataclass(frozen=True)
class Plan:
    """The source: `size` rows in each partition, `take` per transaction, words of their own by generation."""

    take: int
    size: int
    generation: int = 0


PARTITIONS = (0, 1)
BEFORE = Plan(3, 18)
AFTER = {"transactional": BEFORE, "same": BEFORE, "grows": Plan(5, 26, 1), "shrinks": Plan(2, 18, 1)}
WORDS = ("the", "cow", "jumped", "over", "moon", "cat", "dog", "cat's", "a", "zebra", "blé")


def word(partition: int, offset: int, generation: int) -> str:
    return WORDS[(offset * offset + 3 * partition + 5 * generation) % len(WORDS)]


@dataclass(frozen=True)
class Cell:
    """One cell of the crash grid; `id` selects it in ``pytest -k``."""

    point: str
    fault: str
    source: str
    depth: int

    @property
    def id(self) -> str:
        """Id of the cell, such as ``before-p1-kill-grows-4``."""
        return f"{self.point}-{self.fault}-{self.source}-{self.depth}"

    @property
    def place(self) -> tuple[int, int, int, int]:
        return (
            list(POINTS).index(self.point),
            FAULTS.index(self.fault),
            SOURCES.index(self.source),
            DEPTHS.index(self.depth),
        )

    @property
    def decided(self) -> int:
        """Number of transactions that are decided at the fault, if they run one at a time."""
        return POINTS[self.point][2]

    @property
    def passage(self) -> str:
        """Fault point and its passage, such as ``p1.before:2``."""
        name, nth, _ = POINTS[self.point]
        return f"{name}:{nth}"

    def armed(self, action: str) -> str:
        """Return the value of ``TXSTORM_FAULT`` that arms this cell."""
        return self.passage.replace(":", f":{action}:")


ALL = [Cell(*values) for values in product(POINTS, FAULTS, SOURCES, DEPTHS)]


def _turn(cell: Cell) -> int:
    point, fault, source, depth = cell.place
    return (point + fault - source - 2 * depth) % 4


def _quick(cell: Cell) -> bool:
    """Whether the quick grid includes this cell: one per point and fault, alternating sources and depths."""
    point, fault, _, depth = cell.place
    return _turn(cell) == 0 and (point // 4 + fault) % 2 == depth


def _end_to_end(cell: Cell) -> bool:
    """Whether the end-to-end grid includes this cell: two per point, with different faults."""
    return _quick(cell) and cell.place[1] != cell.place[0] % 3


QUICK = [cell for cell in ALL if _quick(cell)]
SHORT = [cell for cell in QUICK if cell.fault != "exception" or cell.place[0] % 3 == 0]
"""Every point with a kill and a hang, every third one with an exception: the grid of ``scripts/test``."""
FOURTH = [cell for cell in ALL if _turn(cell) == 0]
END_TO_END = [cell for cell in ALL if _end_to_end(cell)]

Batches = dict[int, dict[int, tuple[int, int, int]]]
"""Txid → partition → (first offset, number of rows, generation); partitions that gave nothing are left out."""


def expected(source: str, decided: int) -> Batches:
    """Return the expected extents of each txid if `decided` transactions precede the source's change."""
    ends = dict.fromkeys(PARTITIONS, 0)
    batches: Batches = {}
    while len(batches) < decided or any(end < AFTER[source].size for end in ends.values()):
        txid = len(batches) + 1
        plan = BEFORE if txid <= decided else AFTER[source]
        counts = {partition: min(plan.take, plan.size - end) for partition, end in ends.items()}
        assert any(counts.values()), f"{decided} decided, but txid {txid} is beyond the end"
        batches[txid] = {p: (ends[p], count, plan.generation) for p, count in counts.items() if count}
        ends = {p: end + counts[p] for p, end in ends.items()}
    return batches
