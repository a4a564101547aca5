"""Journal of the state machine: events and commands as JSON lines, and their replay.

Each run starts with the line built by `header`; every step appends the line built by `record`. A file may hold several
runs. An incomplete last line, left by a killed process, is ignored.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from txstorm.coordinator.commands import COMMANDS, Command
from txstorm.coordinator.events import EVENTS, Event
from txstorm.coordinator.machine import Config, State, initial, step
from txstorm.errors import InputError, TxstormError

FORMAT = "txstorm-coordinator-journal"
VERSION = 1

T = TypeVar("T")


@dataclass(frozen=True)
class Difference:
    """The first journal line for which the state machine now returns commands other than the recorded ones.

    Attributes:
        line: line number, counted from 1.
        event: the event in that line.
        expected: the recorded commands.
        got: the commands that the machine returns now.
    """

    line: int
    event: Event
    expected: tuple[Command, ...]
    got: tuple[Command, ...]

    def __str__(self) -> str:
        return f"journal line {self.line}: after {self.event} expected {list(self.expected)}, got {list(self.got)}"


@dataclass(frozen=True)
class Replayed:
    """Outcome of `replay`: number of steps, state after the last one, and the difference that ended it, if any."""

    steps: int
    state: State
    difference: Difference | None = None


def header(config: Config) -> str:
    """Return the first journal line of a run, without a line ending."""
    return json.dumps({"format": FORMAT, "version": VERSION, "config": _values(config)})


def record(event: Event, commands: Sequence[Command]) -> str:
    """Return the journal line of one step, without a line ending."""
    return json.dumps({"event": _pair(event), "commands": [_pair(command) for command in commands]})


def replay(lines: Iterable[str], config: Config | None = None) -> Replayed:
    """Feed the recorded events to the state machine, up to the first difference.

    Args:
        lines: the journal, with or without line endings.
        config: configuration to use instead of the recorded one; None: use the recorded one.

    Raises:
        InputError: the lines are not a journal, or one in a newer format.
    """
    parsed = _parse(lines)
    if not parsed:
        raise InputError(f"journal: expected a header of format {FORMAT!r} in the first line, got nothing")
    steps, state = 0, initial(_config(*parsed[0]))
    for number, value in parsed:
        if "format" in value:
            recorded = _config(number, value)
            state = initial(config or recorded)
            continue
        event = _decode(number, value.get("event"), _EVENTS)
        expected = tuple(_decode(number, command, _COMMANDS) for command in _list(number, value.get("commands")))
        state, got = _step(number, state, event)
        if got != expected:
            return Replayed(steps, state, Difference(number, event, expected, got))
        steps += 1
    return Replayed(steps, state)


def _step(number: int, state: State, event: Event) -> tuple[State, tuple[Command, ...]]:
    try:
        return step(state, event)
    except TxstormError as error:
        raise InputError(f"journal line {number}: {error}") from error


def _parse(lines: Iterable[str]) -> list[tuple[int, dict[str, Any]]]:
    texts = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    parsed = []
    for number, text in texts:
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            if number == texts[-1][0]:
                break
            msg = f"journal line {number}: expected a JSON object, got {text[:80]!r} ({error}); the file is damaged"
            raise InputError(msg) from error
        if not isinstance(value, dict):
            raise _bad(number, "a JSON object", value)
        parsed.append((number, value))
    return parsed


def _config(number: int, value: dict[str, Any]) -> Config:
    """Return the configuration recorded in a header line."""
    if value.get("format") != FORMAT:
        raise _bad(number, f"a header of format {FORMAT!r}", value)
    version = _int(number, value.get("version"))
    if version > VERSION:
        raise InputError(
            f"journal line {number}: format {FORMAT} version {version} is newer than version {VERSION}, "
            "which this txstorm reads; use the txstorm that wrote it"
        )
    return _build(number, Config, value.get("config"))


def _values(value: Any) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in fields(value)}


def _pair(value: Event | Command) -> list[Any]:
    return [type(value).__name__, _values(value)]


def _decode(number: int, pair: Any, known: dict[str, type[T]]) -> T:
    name, values = pair if isinstance(pair, list) and len(pair) == 2 else (None, None)
    if not isinstance(name, str) or name not in known:
        raise _bad(number, f"[name, values] with a name of {sorted(known)}", pair)
    return _build(number, known[name], values)


def _build(number: int, kind: type[T], values: Any) -> T:
    types = {field.name: field.type for field in fields(kind)}  # type: ignore[arg-type]
    if not isinstance(values, dict) or values.keys() != types.keys():
        raise _bad(number, f"{kind.__name__} with {sorted(types)}", values)
    return kind(**{name: _READERS[str(types[name])](number, value) for name, value in values.items()})


def _int(number: int, value: Any) -> int:
    if type(value) is not int:
        raise _bad(number, "a whole number", value)
    return value


def _bool(number: int, value: Any) -> bool:
    if type(value) is not bool:
        raise _bad(number, "true or false", value)
    return value


def _list(number: int, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise _bad(number, "a list", value)
    return value


def _ints(number: int, value: Any) -> tuple[int, ...]:
    return tuple(_int(number, item) for item in _list(number, value))


def _bad(number: int, expected: str, got: Any) -> InputError:
    return InputError(
        f"journal line {number}: expected {expected}, got {str(got)[:80]}; this is not a journal of txstorm"
    )


# Keyed by the annotation's text: with postponed evaluation a dataclass field's type is a string.
_READERS: dict[str, Callable[[int, Any], Any]] = {"int": _int, "bool": _bool, "tuple[int, ...]": _ints}
_EVENTS: dict[str, type[Event]] = {event.__name__: event for event in EVENTS}
_COMMANDS: dict[str, type[Command]] = {command.__name__: command for command in COMMANDS}
