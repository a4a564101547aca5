"""The clock of stamps against a model: what is held, which time stamps have, and when a jump is believed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txstorm.errors import InputError
from txstorm.lanes import Inline
from txstorm.runtime.batches.wall_clock import StampClock
from txstorm.topology.settings import Settings

HOUR, DAY = 3600, 86_400
START = 1_800_000_000
YEAR = 365 * DAY
PATIENCE = 600


class Machine(Inline):
    """A machine whose wall clock jumps; times in seconds."""

    def __init__(self) -> None:
        super().__init__(lambda: (START + self.passed + self.off) * 1_000_000, lambda: 0.0)
        self.passed = self.off = 0

    def boot(self) -> float:
        return float(self.passed)


def clock_of(machine: Machine, last: int | None = None, *, by_clock: bool = True, **changes: object) -> StampClock:
    clock = StampClock(machine, Settings.parse(changes), "words", ("count",) if by_clock else ())
    clock.open(None if last is None else last * 1_000_000)
    return clock


STEPS = st.lists(
    st.tuples(st.sampled_from(["pass", "jump", "accept"]), st.sampled_from([30, 600, HOUR - 1, 3 * HOUR, YEAR])),
    max_size=12,
)


@given(STEPS, st.booleans())
def test_a_jump_is_believed_only_if_it_stays_or_is_accepted(steps: list[tuple[str, int]], by_clock: bool) -> None:
    machine = Machine()
    clock, shift, since = clock_of(machine, by_clock=by_clock), 0, None  # the shift believed; when the doubt began
    doubted, shown = 0, START
    for kind, seconds in steps:
        if kind == "pass":
            machine.passed += seconds
        elif kind == "jump":
            machine.off += -seconds if machine.off > YEAR or seconds == 600 else seconds
        else:
            clock.accept()
            shift, since = machine.off, None
        held = clock.holds()
        if machine.off <= shift + HOUR:
            shift, since = max(shift, machine.off), None
        elif since is None or abs(machine.off - doubted) > HOUR:
            since, doubted = machine.passed, machine.off
        elif machine.passed - since >= PATIENCE:
            shift, since = machine.off, None
        assert held == (by_clock and since is not None)
        assert (clock.problem is None) == (since is None)
        time = machine.passed + (machine.off if since is None else shift)
        assert clock.now() == (START + time) * 1_000_000
        shown = max(shown, START + time)
        assert clock.seen is None or clock.seen <= shown * 1_000_000


@pytest.mark.parametrize(
    ("stop", "held"),
    [(-HOUR, False), (30, False), (3 * DAY, False), (31 * DAY, False), (31 * DAY + 1, True), (YEAR, True)],
)
def test_a_start_after_a_long_stop_waits_for_the_clock_to_be_set_right(stop: int, held: bool) -> None:
    machine = Machine()
    last = START - stop
    clock = clock_of(machine, last)
    assert clock.holds() is held
    assert clock_of(machine, last, by_clock=False).holds() is False
    assert clock_of(machine, last, by_clock=False).settled is not held
    assert clock.seen == (last if held else START) * 1_000_000
    machine.passed += PATIENCE
    if held:
        with pytest.raises(InputError, match="--accept-clock"):
            clock.holds()
        machine.off = -stop  # it is set right
    assert not clock.holds()
    assert clock.now() == (START + machine.passed + machine.off) * 1_000_000
    machine.off += 2 * HOUR  # from now on, an hour is the limit
    assert clock.holds()


def test_a_start_without_a_limit_or_of_a_topology_that_was_idle_goes_on() -> None:
    machine = Machine()
    assert not clock_of(machine, START - YEAR, max_stop="none").holds()
    idle = StampClock(machine, Settings(), "words", ("count",))
    idle.open((START - YEAR) * 1_000_000, lambda: (START - 30) * 1_000_000)  # it ran, and its source was silent
    assert not idle.holds()
    assert clock_of(machine, START - 100, max_stop=60).holds()
