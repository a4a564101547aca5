"""When the compaction of a state is due: soon after its last one, and at once for changes that a start finds."""

import pytest

from txstorm.storage.upkeep.growth import LEAST_ROWS, Growth, Recent


def test_the_first_changes_of_a_new_state_wait_for_half_of_the_lag():
    growth = Growth(0, 0, Recent(0))
    assert growth.overdue(100.0, 10.0) is None
    growth.add(5, 1, None, 100.0)
    growth.add(5, 2, None, 104.0)
    assert growth.overdue(104.9, 10.0) is None
    assert growth.overdue(105.5, 10.0) == pytest.approx(0.5)


def test_changes_that_a_start_finds_are_due_at_once():
    growth = Growth(3, 7, Recent(0))
    growth.add(5, 1, None, 100.0)
    assert growth.overdue(100.0, 10.0) == 10.0


def test_after_a_long_pause_changes_are_due_at_once():
    growth = Growth(3, 7, Recent(0))
    growth.begin(50.0, whole=True)
    growth.end(10, 1)
    growth.add(5, 2, None, 100.0)
    assert growth.overdue(100.0, 10.0) == pytest.approx(45.0)


def test_as_many_changes_as_rows_are_due_whatever_the_lag():
    growth = Growth(0, 0, Recent(0))
    growth.add(LEAST_ROWS, 1, None, 100.0)
    assert growth.overdue(100.0, None) == float("inf")
