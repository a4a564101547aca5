"""Garbage collector thresholds: raised while any thread runs, processes or commits transactions, then restored."""

import gc
from contextlib import ExitStack

import pytest

from txstorm.engine import gc_pause
from txstorm.engine.gc_pause import BETWEEN, SELDOM, seldom_collected


@pytest.fixture(autouse=True)
def usual(monkeypatch):
    # Threads that earlier tests have left inside a batch do not count here.
    monkeypatch.setattr(gc_pause, "_INSIDE", gc_pause._Inside())
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield gc.get_threshold()
    gc.enable()
    gc.set_threshold(*before)


def test_collections_stay_infrequent_until_the_last_pause_ends_and_a_disabled_collector_disabled(usual):
    first, second = ExitStack(), ExitStack()
    first.enter_context(seldom_collected())
    second.enter_context(seldom_collected())
    assert gc.get_threshold() == SELDOM
    first.close()  # the pause that began first may end first
    assert gc.get_threshold() == SELDOM
    second.close()
    assert gc.get_threshold() == usual
    with seldom_collected(BETWEEN):
        assert gc.get_threshold() == BETWEEN
        for _ in range(2):
            with seldom_collected():
                assert gc.get_threshold() == SELDOM
            assert gc.get_threshold() == BETWEEN
    assert gc.get_threshold() == usual
    with seldom_collected():
        with seldom_collected(BETWEEN):
            assert gc.get_threshold() == SELDOM
        assert gc.get_threshold() == SELDOM
    assert gc.get_threshold() == usual
    with pytest.raises(ValueError, match="boom"), seldom_collected():
        raise ValueError("boom")
    assert gc.get_threshold() == usual
    gc.disable()
    with seldom_collected():
        assert gc.get_threshold() == usual
    assert not gc.isenabled()


@pytest.mark.parametrize("wanted", [(0, 10, 10), (SELDOM[0] * 2, 10, 10)])
def test_thresholds_set_by_the_application_are_kept(wanted):
    gc.set_threshold(*wanted)
    with seldom_collected():
        assert gc.get_threshold() == wanted
    assert gc.get_threshold() == wanted
