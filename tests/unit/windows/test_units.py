"""Units of a task that takes over queued keys from another number of tasks."""

from types import SimpleNamespace

import pytest

from txstorm.windows.rules.firing import Moment
from txstorm.windows.units import FIRE, Stores, Units, queue_name


class Queue:
    """Stands in for the collection of queues: name → (order, key)."""

    def __init__(self, rows):
        self.rows = rows

    def scan(self, name):
        return sorted(self.rows.get(name, []))

    def append_many(self, rows):
        for name, at, key in rows:
            self.rows.setdefault(name, []).append((at, key))

    def evict_before(self, place, name):
        self.rows[name] = [row for row in self.rows[name] if row[0] >= place]


@pytest.mark.parametrize(("task", "expected"), [(0, [(5, "a"), (9, "a")]), (1, [(7, "b")])])
def test_each_queued_key_goes_to_its_new_task_only(task, expected):
    queue = Queue({queue_name(FIRE, 0, 1): [(5, "a"), (7, "b"), (9, "a")]})
    plan = SimpleNamespace(form=None, parallelism=2, owner={"a": 0, "b": 1}.__getitem__)
    Units(plan, task, Moment(1, None, None), 0, Stores(None, None, queue)).adopt(1)
    assert queue.rows[queue_name(FIRE, task, 2)] == expected
