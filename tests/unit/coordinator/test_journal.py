import json

import pytest
from coordinator_bench import Bench

from txstorm.coordinator.commands import COMMANDS, Commit, Discard, Plan
from txstorm.coordinator.events import EVENTS, Failed, Opened, Processed, Wake
from txstorm.coordinator.journal import Difference, Replayed, header, record, replay
from txstorm.coordinator.machine import Config, initial
from txstorm.errors import InputError


def session(**kwargs) -> tuple[Bench, list[str]]:
    """Return a bench that has processed a short session, and the lines of its journal."""
    bench = Bench(max_pending=2, max_group=2, **kwargs)
    bench.wake()
    bench.ack(2), bench.ack(1), bench.fail(2), bench.ack(1), bench.ack(2)
    return bench, [header(bench.config), *(record(event, commands) for event, commands in bench.log)]


def test_journals_of_one_run_of_several_of_none_and_of_a_killed_one_and_the_first_difference():
    bench, lines = session()
    assert replay(lines) == Replayed(len(bench.log), bench.state)
    assert replay(line + "\n" for line in lines) == Replayed(len(bench.log), bench.state)
    again, more = session(stored={1: "a", 2: "b"})
    assert replay(lines + more) == Replayed(len(bench.log) + len(again.log), again.state)
    assert replay([header(Config(3))]) == Replayed(0, initial(Config(3)))
    cut = [*lines[:-1], lines[-1][: len(lines[-1]) // 2]]
    assert replay(cut).steps == len(bench.log) - 1
    bench, lines = session()
    found = replay(lines, Config(max_pending=1)).difference  # another configuration
    assert isinstance(found, Difference)
    assert found.got == found.expected[:1]  # the first batch starts, but no plan for the second follows
    place = next(number for number, line in enumerate(lines) if '"Commit"' in line)
    lines[place] = record(bench.log[place - 1][0], ())
    found = replay(lines).difference
    assert found is not None
    assert (found.line, found.event, found.expected) == (place + 1, bench.log[place - 1][0], ())
    assert found.got == bench.log[place - 1][1]
    assert f"journal line {place + 1}: after Processed" in str(found)


def test_lines_are_readable_json_objects():
    assert json.loads(record(Failed(3, 7, resume=False), (Discard((3, 4), (7, 8)), Plan(3, replay=True)))) == {
        "event": ["Failed", {"txid": 3, "attempt_id": 7, "resume": False}],
        "commands": [["Discard", {"txids": [3, 4], "attempt_ids": [7, 8]}], ["Plan", {"txid": 3, "replay": True}]],
    }
    assert json.loads(header(Config(4, 2, True))) == {
        "format": "txstorm-coordinator-journal",
        "version": 1,
        "config": {"max_pending": 4, "max_group": 2, "opaque": True},
    }


@pytest.mark.parametrize("kind", [*EVENTS, *COMMANDS], ids=lambda kind: kind.__name__)
def test_every_event_and_command_can_be_recorded_and_read(kind):
    sample = {"int": 3, "bool": True, "tuple[int, ...]": (3, 4)}
    value = kind(**{name: sample[field.type] for name, field in kind.__dataclass_fields__.items()})
    event, commands = (value, ()) if kind in EVENTS else (Opened(1), (value,))
    lines = [header(Config(1)), record(Opened(1), ()), record(event, commands)]
    if kind is Opened:  # a run without gaps from 3
        assert replay(lines).steps == 2
    elif kind in COMMANDS:
        assert replay(lines).difference.expected == (value,)
    else:
        found = replay([*lines[:2], record(event, (Commit((9,), (9,)),))]).difference
        assert (found.event, found.expected) == (value, (Commit((9,), (9,)),))


WAKE, HEADER = record(Wake(), ()), header(Config(1))


def head(**changes) -> str:
    return json.dumps({"format": "txstorm-coordinator-journal", **changes})


BAD = {
    "nothing": ([], "expected a header .* got nothing"),
    "blank": (["", "\n"], "expected a header .* got nothing"),
    "no header": ([WAKE, WAKE], "line 1: expected a header"),
    "other format": ([head(format="other", version=1)], "line 1: expected a header"),
    "no version": ([head()], "line 1: expected a whole number"),
    "bad config": ([head(version=1, config={"max_pending": 1})], "line 1: expected Config with"),
    "newer": ([head(version=2)], "txstorm-coordinator-journal version 2 is newer than version 1"),
    "not json in the middle": ([HEADER, "{", WAKE], "line 2: expected a JSON object"),
    "no object": ([HEADER, "[1]", WAKE], "line 2: expected a JSON object"),
    "no event": ([HEADER, "{}"], "line 2: expected .name, values."),
    "unknown event": ([HEADER, '{"event": ["Exit", {}], "commands": []}'], "line 2: expected .name, values."),
    "a command as event": ([HEADER, '{"event": ["Forget", {"before": 1}], "commands": []}'], "line 2"),
    "missing value": ([HEADER, '{"event": ["Resume", {}], "commands": []}'], "expected Resume with .'txid'"),
    "text for a number": ([HEADER, '{"event": ["Resume", {"txid": "1"}], "commands": []}'], "whole number"),
    "bool for a number": ([HEADER, '{"event": ["Resume", {"txid": true}], "commands": []}'], "whole number"),
    "number for a bool": ([HEADER, '{"event": ["Stopping", {"drain": 1}], "commands": []}'], "true or false"),
    "no list": ([HEADER, '{"event": ["Wake", {}], "commands": 1}'], "line 2: expected a list"),
    "impossible event": ([HEADER, WAKE], "line 2: .*expected Opened"),
}


@pytest.mark.parametrize(("lines", "message"), BAD.values(), ids=BAD)
def test_malformed_and_newer_journals_are_rejected_with_their_line(lines, message):
    with pytest.raises(InputError, match=message):
        replay(lines)


def test_damage_anywhere_in_a_line_is_an_input_error_or_a_difference():
    _, lines = session()
    line = record(Processed(2, 102), (Discard((2,), (102,)),))
    for place in range(len(line)):
        for put in ('"', "7", "{", ""):
            broken = [*lines, line[:place] + put + line[place + 1 :], WAKE]
            try:
                assert replay(broken).difference is not None
            except InputError as error:
                assert "journal line" in str(error)
