"""An outlet writer that stores rows in memory, and topologies that write to it."""

from typing import Any

from watched import Gathering

from txstorm import Committer, TransactionalTopologyBuilder
from txstorm.api.external import Mark, Outlet
from txstorm.spouts import MemoryTransactionalSpout


class Target:
    """An outlet's rows and commit mark, which outlive a run; `trouble` has the steps that fail, as (step, nth call)."""

    def __init__(self, *trouble: tuple[str, int]) -> None:
        self.rows: list[dict[str, Any]] = []
        self.mark: Mark | None = None
        self.calls: list[str] = []
        self.trouble = trouble


class MemoryWriter:
    """A writer that appends rows to a `Target`."""

    def __init__(self, target: Target) -> None:
        self.target = target

    def open(self, outlet, topology, incarnation):
        self.target.calls.append(f"open {outlet} {topology}")

    def published(self):
        self._pass("published")
        return self.target.mark

    def publish(self, rows, expected, mark):
        self._pass("before")
        if self.target.mark != expected:
            return False
        self.target.rows += rows.to_pylist()
        self.target.mark = mark
        self._pass("after")
        return True

    def close(self):
        self.target.calls.append("close")

    def _pass(self, where):
        self.target.calls.append(where)
        if (where, self.target.calls.count(where)) in self.target.trouble:
            msg = "the line went dead"
            raise ConnectionError(msg)


class Send(Gathering, Committer):
    def __init__(self, outlet: Outlet) -> None:
        self.outlet = outlet

    def finish_batch(self):
        for number in self.taken:
            self.context.sink(self.outlet.name).append(number)


def topology(target: Target, numbers: int = 8, group: int = 2, name: str = "numbers") -> Any:
    builder = TransactionalTopologyBuilder(
        "sending", "source", MemoryTransactionalSpout([[(n,) for n in range(numbers)]], ["n"], take=2)
    )
    builder.set_bolt("send", Send(Outlet(name, {"n": int}, MemoryWriter(target)))).global_grouping("source")
    builder.set_settings({"retry_backoff": 0, "max_group_txids": group, "max_spout_pending": 8})
    return builder.build_topology()
