"""The negotiator's machine, against its table: the golden path, processors lost in each state, random events."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txstorm import Clock
from txstorm.hailstorm.negotiator import (
    GraceOver,
    Loaded,
    Lost,
    MasterState,
    Pause,
    Paused,
    Registered,
    RemoveEntries,
    Rewind,
    Rewound,
    Saved,
    Snapshot,
    Started,
    step,
)

SPOUTS, BOLTS, SINKS = ("s-0", "s-1"), ("b-0", "b-1"), ("k-0",)
ALL = (*SPOUTS, *BOLTS, *SINKS)
C1, C2 = Clock({"p": 1, "q": 1}), Clock({"p": 2, "q": 1})
AT = {"s-0": Clock({"p": 2}), "s-1": Clock({"q": 1})}
PATH = [
    Started(),
    *map(Registered, ALL),
    *(Loaded(bolt, (C1,)) for bolt in BOLTS),
    *(Rewound(spout, C1) for spout in SPOUTS),
    GraceOver(),
    *(Paused(spout, AT[spout]) for spout in SPOUTS),
    *(Saved(bolt, C2) for bolt in BOLTS),
]
STATES = ["Unavailable", "Initialize", f"SpoutsRewind({C1})"]
STATES += ["Flowing", "SpoutsPaused", f"Flowing({C2})", "Flowing"]


def run(events, state=None):
    """Return the states passed through, the first one included, and all commands."""
    state = MasterState.of(SPOUTS, BOLTS, SINKS) if state is None else state
    passed, commands = [state], []
    for event in events:
        after, more = step(passed[-1], event)
        commands += more
        passed += [after] if str(after) != str(passed[-1]) else []
        passed[-1] = after
    return passed, commands


def test_from_started_to_the_first_snapshot():
    passed, commands = run(PATH)
    assert list(map(str, passed)) == STATES
    assert commands == [Rewind(C1), Pause(), Snapshot(C2)]


@pytest.mark.parametrize("lost", ["s-1", "b-0", "k-0"])
@pytest.mark.parametrize("at", range(1, len(PATH) + 1))
def test_a_processor_lost_in_any_state(lost, at):
    before = run(PATH[:at])[0][-1]
    after, commands = step(before, Lost(lost))
    assert (str(after), after.there, commands) == ("Initialize", frozenset(), (RemoveEntries(),))
    assert list(map(str, run(PATH[1:], after)[0])) == STATES[1:]


@pytest.mark.parametrize(
    ("first", "second", "chosen"),
    [
        ((C2, C1), (C2, C1), f"SpoutsRewind({C2})"),
        ((C2, C1), (C1,), f"SpoutsRewind({C1})"),
        ((C1, C2), (C1, C2), f"SpoutsRewind({C2})"),
        ((), (), "SpoutsRewind"),
        ((C1,), (C2,), "Initialize"),
        ((C1,), (), "Initialize"),
    ],
)
def test_the_newest_clock_that_all_bolts_have(first, second, chosen):
    passed, _ = run([*PATH[:6], Loaded("b-0", first), Loaded("b-1", second)])
    assert str(passed[-1]) == chosen


def naive(events):
    """Return the states shown: the table read line by line, on the events since the last change of the state."""
    shown, since, clock = ["Unavailable"], [], None
    for event in events:
        since.append(event)
        name = shown[-1].partition("(")[0]
        after = None
        if isinstance(event, Lost) and event.name in ALL and name != "Unavailable":
            after = "Initialize", None
        elif name == "Unavailable" and event == Started():
            after = "Initialize", None
        elif name == "Initialize" and all(Registered(one) in since for one in ALL):
            known = [[e.clocks for e in since if isinstance(e, Loaded) and e.bolt == bolt][-1:] for bolt in BOLTS]
            if all(known):
                common = [one for one in (C2, C1) if all(one in clocks for (clocks,) in known)]
                if common or not any(clocks for (clocks,) in known):
                    after = "SpoutsRewind", (common or [None])[0]
        elif name == "SpoutsRewind" and all(Rewound(spout, clock) in since for spout in SPOUTS):
            after = "Flowing", None
        elif name == "SpoutsPaused":
            told = [[e.offset for e in since if isinstance(e, Paused) and e.spout == spout][-1:] for spout in SPOUTS]
            after = ("Flowing", Clock({**told[0][0], **told[1][0]})) if all(told) else None
        elif shown[-1] == "Flowing" and event == GraceOver():
            after = "SpoutsPaused", None
        elif name == "Flowing" and clock is not None and all(Saved(bolt, clock) in since for bolt in BOLTS):
            after = "Flowing", None
        if after is not None:
            clock, since = after[1], []
            state = after[0] if clock is None else f"{after[0]}({clock})"
            shown += [state] if state != shown[-1] else []
    return shown


CLOCKS = st.sampled_from([C1, C2])
ANY = st.one_of(
    st.sampled_from([Started(), GraceOver(), Lost("x-0"), Registered("x-0"), Saved("k-0", C2)]),
    st.sampled_from(PATH),
    st.builds(Lost, st.sampled_from(ALL)),
    st.builds(Loaded, st.sampled_from(BOLTS), st.lists(CLOCKS, unique=True).map(tuple)),
    st.builds(Rewound, st.sampled_from(SPOUTS), st.none() | CLOCKS),
    st.builds(Saved, st.sampled_from(BOLTS), CLOCKS),
)
STRETCHES = st.one_of(ANY.map(lambda event: [event]), st.integers(0, len(PATH)).map(lambda at: PATH[at:]))


@given(st.lists(STRETCHES, max_size=12))
def test_any_events_lead_where_the_table_says(stretches):
    events = [event for stretch in stretches for event in stretch]
    passed, commands = run(events)
    assert list(map(str, passed)) == naive(events)
    assert [one.clock for one in commands if isinstance(one, Snapshot)] == [
        one.clock for one in passed if one.name == "Flowing" and one.clock is not None
    ]
