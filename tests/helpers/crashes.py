"""Crashes at fault points within the process of a test."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from txstorm import faults


@contextmanager
def crashing(point: str, nth: int = 1) -> Iterator[None]:
    """Assert that the body reaches a fault point for the n-th time, and crashes there."""
    faults.arm(f"{point}:raise:{nth}")
    with pytest.raises(faults.InjectedFault):
        yield
    faults.arm("")
