"""Observation of a process tree from outside: CPU time by kind of process, and total memory."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")


@dataclass(frozen=True)
class Process:
    """One process, as /proc shows it.

    Attributes:
        kind: ``driver`` for the root of the tree, ``jvm``, or ``workers`` for everything else.
        cpu: CPU seconds, including those of children that have ended.
    """

    pid: int
    kind: str
    cpu: float

    @property
    def memory(self) -> int:
        """Return the bytes of memory; shared memory is divided among the processes that share it."""
        try:
            for line in (PROC / str(self.pid) / "smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    return int(line.split()[1]) << 10
        except OSError:
            pass
        return 0


def tree(root: int) -> list[Process]:
    """Return the process `root` and its descendants; empty without /proc."""
    ticks, known = os.sysconf("SC_CLK_TCK"), {one[0]: one for one in _processes()}
    family = [root] if root in known else []
    for one in family:  # grows meanwhile
        family += [pid for pid, parent, _, _ in known.values() if parent == one]
    kinds = ("driver" if pid == root else "jvm" if known[pid][2] == "java" else "workers" for pid in family)
    return [Process(pid, kind, known[pid][3] / ticks) for pid, kind in zip(family, kinds, strict=True)]


def cpu_by_kind(root: int) -> Mapping[str, float]:
    """Return the CPU seconds of the tree of `root`, by kind of process."""
    total: Counter[str] = Counter()
    for one in tree(root):
        total[one.kind] += one.cpu  # type: ignore[assignment]
    return total


def memory(root: int) -> int:
    """Return the bytes of memory that the tree of `root` uses now."""
    return sum(one.memory for one in tree(root))


def _processes() -> Iterator[tuple[int, int, str, int]]:
    """Yield number, parent, name, and ticks, including those of ended children, of every process."""
    for entry in PROC.iterdir() if PROC.is_dir() else ():
        if entry.name.isdigit():
            try:
                head, _, tail = (entry / "stat").read_text().rpartition(")")
            except OSError:
                continue  # it has ended
            fields = tail.split()
            yield int(entry.name), int(fields[1]), head.partition("(")[2], sum(map(int, fields[11:15]))
