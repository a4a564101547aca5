"""The stand-alone executor of a stateful windowed bolt: windows, saved ids, and tuples that come again."""

from datetime import datetime

import pytest
from stateful_nets import RunningSum

from txstorm import Count, Duration
from txstorm.errors import InputError, StateError
from txstorm.testing import StatefulWindowedBoltExecutor


def executor(bolt=None, fields=("value", "id"), saved=None, state=None):
    bolt = bolt or RunningSum().with_window(Count(5), Count(3))
    made = StatefulWindowedBoltExecutor(bolt.with_message_id_field("id"), fields, saved, state)
    made.init_state()
    return made


def test_windows_of_storms_example_and_of_event_time_are_not_evaluated_again():
    """Rows W40, W41, W42."""
    run = executor()
    for n in range(1, 13):
        run.execute(n, n)
    assert run.evaluated == [[1, 2, 3], [2, 3, 4, 5, 6], [5, 6, 7, 8, 9], [8, 9, 10, 11, 12]]
    assert run.emitted() == [(6,), (21,), (45,), (78,)]
    assert run.saved == {(0, "default"): (7, 12)}
    run = executor()
    for n in range(1, 9):
        run.execute(n, n)
    assert run.saved == {(0, "default"): (1, 6)}
    again = executor(saved=run.saved, state=run.state)
    for n in range(1, 13):
        again.execute(n, n)
    assert again.discarded == [(0, "default", 1)]
    assert again.evaluated == [[5, 6, 7, 8, 9], [8, 9, 10, 11, 12]]
    assert again.emitted() == [(45,), (78,)]
    assert again.saved == {(0, "default"): (7, 12)}
    bolt = lambda: RunningSum().with_window(Duration.seconds(20), Duration.seconds(10)).with_timestamp_field("ts")  # noqa: E731
    run = executor(bolt(), ("value", "id", "ts"))
    times = [3_000, 5_000, 18_000, 26_000, 36_000, 51_000]
    for id, ts in enumerate(times, 1):
        run.execute(1, id, ts)
    assert run.evaluated == [[1, 2], [1, 2, 3], [3, 4], [4, 5], [5]]
    assert run.saved == {(0, "default"): (4, 5)}
    again = executor(bolt(), ("value", "id", "ts"), saved=dict(run.saved), state=run.state)
    for id, ts in enumerate(times[:5], 1):
        again.execute(1, id, ts)
    assert again.discarded == [(0, "default", id) for id in (1, 2, 3, 4)]
    assert again.evaluated == []
    again.execute(1, 6, 51_000)  # ends that have fired do not fire again
    assert again.evaluated == []
    again.execute(1, 7, 72_000)
    assert again.evaluated == [[6], [6]]


def test_tuples_wait_for_every_saved_source_and_saved_ids_never_decrease():
    saved = {(0, "default"): (None, 3), (1, "default"): (None, 2)}
    run = executor(RunningSum().with_tumbling_window(Count(2)), saved=saved)
    run.execute(4, 4)  # passes its source
    run.execute(5, 5)
    run.execute(1, 1, task=1)
    assert run.evaluated == []
    run.execute(7, 7, stream="other")  # of no saved source
    run.execute(3, 3, task=1)
    assert run.evaluated == [[4, 5], [7, 3]]
    assert run.saved == {(0, "default"): (5, 5), (1, "default"): (1, 3), (0, "other"): (None, 7)}
    run = executor(RunningSum().with_tumbling_window(Count(1)), saved={(0, "default"): (7, None)})
    run.execute(3, 3)
    run.execute(1, 1)
    assert run.saved == {(0, "default"): (7, 3)}
    assert executor().saved == {}
    run = executor(saved={(0, "default"): None})
    run.execute(1, 1)
    assert run.saved == {(0, "default"): (None, None)}


@pytest.mark.parametrize("only_ids", [True, False])
def test_no_window_of_a_time_slide_is_evaluated_again(only_ids):
    """Whatever the slide, and wherever the first executor ended; of ids alone, if each window has new or expired ones."""
    times = [1_000, 12_000, 13_000, 26_000, 39_000, 45_000, 58_000, 64_000, 91_000]
    for length, slide in ((10, 10), (20, 10), (10, 20), (30, 5)):

        def make(length=length, slide=slide, **saved):
            bolt = RunningSum().with_window(Duration.seconds(length), Duration.seconds(slide))
            return executor(bolt.with_timestamp_field("ts"), ("value", "id", "ts"), **saved)

        whole = make()
        for id, ts in enumerate(times, 1):
            whole.execute(1, id, ts)
        for cut in range(1, len(times)):
            first = make()
            for id, ts in enumerate(times[:cut], 1):
                first.execute(1, id, ts)
            again = make(saved=dict(first.saved) if only_ids else first.saved, state=first.state)
            for id, ts in enumerate(times, 1):
                again.execute(1, id, ts)
            together = first.evaluated + again.evaluated
            if not only_ids or slide >= length:
                assert together == whole.evaluated, (length, slide, cut)


def test_wrong_arguments_and_execute_before_the_state_are_refused():
    run = StatefulWindowedBoltExecutor(RunningSum().with_window(Count(5)).with_message_id_field("id"), ["value", "id"])
    with pytest.raises(StateError, match=r"execute of \(1, 1\) before init_state"):
        run.execute(1, 1)
    with pytest.raises(InputError, match="object is no StatefulWindowedBolt"):
        StatefulWindowedBoltExecutor(object(), ["id"])
    StatefulWindowedBoltExecutor(RunningSum().with_window(Count(5)).with_persistence(), ["value"]).init_state()
    with pytest.raises(InputError, match="RunningSum does not state how its windows survive a crash"):
        StatefulWindowedBoltExecutor(RunningSum().with_window(Count(5)), ["value"])
    with pytest.raises(InputError, match="expected windows per task"):
        executor(RunningSum())
    with pytest.raises(InputError, match="the message id field 'id' is none of"):
        executor(fields=("value",))
    with pytest.raises(InputError, match="saved has 5: 6, expected"):
        executor(saved={5: 6})
    with pytest.raises(InputError, match=r"message id of .* is 'x', expected an int"):
        executor(RunningSum().with_tumbling_window(Count(1))).execute(1, "x")
    for id in (2**63, 10**5000):
        with pytest.raises(InputError, match=r"the message id .* has more than 64 bits"):
            executor(RunningSum().with_tumbling_window(Count(1))).execute(1, id)
    for time, fault in ((datetime(2026, 1, 1), "has no time zone"), (10**5000, "is outside the years 1 to 9999")):  # noqa: DTZ001
        timed = RunningSum().with_tumbling_window(Duration(1)).with_timestamp_field("ts")
        with pytest.raises(InputError, match=f"the timestamp of .*: .*{fault}"):
            executor(timed, ("value", "id", "ts")).execute(1, 1, time)
