"""When the compaction of a state is due: soon after its last one, and at once for changes that a start finds."""

import pytest

from txstorm.storage.upkeep.growth import LEAST_ROWS, Growth, Recent


def test_changes_of_a_new_state_wait_for_half_of_the_lag_and_others_are_due_at_once():
    growth = Growth(0, 0, Recent(0))
    assert growth.overdue(100.0, 10.0) is None
    growth.add(5, 1, None, 100.0)
    growth.add(5, 2, None, 104.0)
    assert growth.overdue(104.9, 10.0) is None
    assert growth.overdue(105.5, 10.0) == pytest.approx(0.5)
    growth = Growth(3, 7, Recent(0))  # a start finds changes
    growth.add(5, 1, None, 100.0)
    assert growth.overdue(100.0, 10.0) == 10.0
    growth = Growth(3, 7, Recent(0))  # a long pause
    growth.begin(50.0, whole=True)
    growth.end(10, 1)
    growth.add(5, 2, None, 100.0)
    assert growth.overdue(100.0, 10.0) == pytest.approx(45.0)
    growth = Growth(0, 0, Recent(0))  # as many changes as rows
    growth.add(LEAST_ROWS, 1, None, 100.0)
    assert growth.overdue(100.0, None) == float("inf")
