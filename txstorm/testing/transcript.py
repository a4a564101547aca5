"""Transcripts: JSON files that list steps for a topology, and the output expected after each step.

See docs/testing.md for the format.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from txstorm.api.attempt import TransactionAttempt
from txstorm.api.names import DEFAULT_STREAM
from txstorm.errors import InputError
from txstorm.testing.checks.rules import CheckFailed
from txstorm.testing.clock import ManualClock
from txstorm.testing.driver import TopologyTestDriver
from txstorm.topology.graph import Topology

FORMAT, VERSION = "txstorm-transcript", 1
Emits = dict[str, dict[int, list[list[Any]]]]
"""Component (or ``component/stream``, for a stream other than the default) → txid → tuples, in any order."""


class Step(BaseModel):
    """One step: calls on the source, then actions, and the results expected afterwards (the other attributes).

    Attributes:
        note: a comment for human readers.
        source: calls of methods of the spout object: ``["add", 0, ["dog", 3]]``.
        do: ``ack T``, ``fail T``, ``commit TXID``, ``next``, ``advance SECONDS``, ``restart``. T is a txid, or
            ``TXID#N`` for the N-th attempt at it.
        emits: all tuples that the watched components emit in this step.
        committed: the last committed txid after the step.
        status: txid → its status after the step.
        states, sinks: name → rows after the step, in any order.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    note: str = ""
    source: list[list[Any]] = Field(default_factory=list)
    do: list[str] = Field(default_factory=list)
    emits: Emits = Field(default_factory=dict)
    committed: int | None = None
    status: dict[int, str] = Field(default_factory=dict)
    states: dict[str, list[dict[str, Any]]] = Field(default_factory=dict)
    sinks: dict[str, list[dict[str, Any]]] = Field(default_factory=dict)


class Transcript(BaseModel):
    """Content of a transcript file.

    Attributes:
        source: the origin of the transcript, as a comment.
        settings: settings that override those of the topology.
        watch: the components whose emissions are compared; if empty, all components that occur in an ``emits``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal["txstorm-transcript"]
    version: int = Field(ge=1)
    source: str = ""
    settings: dict[str, Any] = Field(default_factory=dict)
    watch: list[str] = Field(default_factory=list)
    steps: list[Step] = Field(min_length=1)

    @classmethod
    def load(cls, path: str | Path) -> Transcript:
        """Load the file at `path`; raise `InputError` if it is not a transcript, or has a newer version."""
        try:
            document = json.loads(Path(path).read_text(encoding="utf-8"))
            version = document.get("version") if isinstance(document, dict) else None
            if isinstance(version, int) and version > VERSION:
                msg = f"transcript {path}: version {version}, this txstorm reads up to {VERSION}: update txstorm"
                raise InputError(msg)
            return cls.model_validate(document)
        except (OSError, ValueError, RecursionError) as error:
            what = _sentences(error) if isinstance(error, ValidationError) else str(error)
            raise InputError(f"transcript {path}: expected JSON of format {FORMAT!r}, but: {what}") from error

    @property
    def watched(self) -> list[str]:
        """The components, or ``component/stream`` pairs, whose emissions are compared."""
        return self.watch or sorted({name for step in self.steps for name in step.emits})


def run_transcript(
    path: str | Path, topology: Topology, *, data_dir: str | Path | None = None, clock: ManualClock | None = None
) -> None:
    """Play the transcript in the file `path` on a `TopologyTestDriver` of `topology`.

    Tuples emitted while the topology is opened belong to the first step.

    Args:
        path: the file.
        topology: the topology; steps call methods of its spout object.
        data_dir: as for `TopologyTestDriver`.
        clock: as for `TopologyTestDriver`.

    Raises:
        InputError: the file is not a transcript, or contains an invalid action.
        CheckFailed: the result of a step differs; the message names the step, the expected and the actual result.
        TopologyFailed: user code has failed.
    """
    transcript = Transcript.load(path)
    with TopologyTestDriver(topology, data_dir=data_dir, clock=clock, settings=transcript.settings) as driver:
        player = _Player(driver, transcript)
        for number, step in enumerate(transcript.steps, start=1):
            player.play(f"transcript {path}, step {number}{_words(step)}", step)


class _Player:
    def __init__(self, driver: TopologyTestDriver, transcript: Transcript) -> None:
        self._driver = driver
        self._watched = transcript.watched
        self._seen = 0
        for name in self._watched:
            component, _, stream = name.partition("/")
            driver.emitted(component, stream=stream or DEFAULT_STREAM)  # raises an error for unknown names

    def play(self, where: str, step: Step) -> None:
        for call in step.source:
            self._call(where, call)
        for action in step.do:
            self._do(where, action)
        differences = [*self._emissions(step), *self._others(step)]
        if differences:
            raise CheckFailed(f"{where}:\n" + "\n".join(f"  - {one}" for one in differences))

    # -- doing --------------------------------------------------------------------------------------------------

    def _call(self, where: str, call: list[Any]) -> None:
        spout = self._driver.topology.spout.object
        name = call[0] if call and isinstance(call[0], str) and not call[0].startswith("_") else ""
        method = getattr(spout, name, None) if name else None
        if not callable(method):
            kind = type(spout).__name__
            msg = f"{where}: source {call!r}: expected [METHOD, ARGUMENT, …] with a public method of the spout ({kind})"
            raise InputError(msg)
        method(*call[1:])

    def _do(self, where: str, action: str) -> None:
        verb, _, rest = action.partition(" ")
        driver = self._driver
        try:
            match verb, rest:
                case "ack", _:
                    driver.ack(self._which(rest))
                case "fail", _:
                    driver.fail(self._which(rest))
                case "commit", _:
                    driver.commit(int(rest))
                case "advance", _:
                    driver.advance(float(rest))
                case "next", "":
                    driver.next_tuple()
                case "restart", "":
                    driver.restart()
                case _:
                    raise InputError("expected ack T, fail T, commit TXID, advance SECONDS, next or restart")
        except (InputError, ValueError) as error:
            raise InputError(f"{where}: {action!r}: {error}") from error

    def _which(self, text: str) -> int | TransactionAttempt:
        """Parse the transaction reference in a step: ``2`` is txid 2, ``2#1`` the first attempt at it."""
        txid, numbered, number = text.partition("#")
        if not numbered:
            return int(txid)
        attempts = self._driver.attempts(int(txid))
        if not 1 <= int(number) <= len(attempts):
            raise InputError(f"expected an attempt from 1 to {len(attempts)}, got {number}")
        return attempts[int(number) - 1]

    # -- comparing ----------------------------------------------------------------------------------------------

    def _emissions(self, step: Step) -> list[str]:
        got: dict[tuple[str, int], list[Any]] = defaultdict(list)
        log = self._driver.emissions
        for one in log[self._seen :]:
            name = one.component if one.stream == DEFAULT_STREAM else f"{one.component}/{one.stream}"
            got[name, one.attempt.txid].append(list(one.values))
        self._seen = len(log)
        wanted = {(name, txid): rows for name, txids in step.emits.items() for txid, rows in txids.items()}
        keys = [key for key in dict.fromkeys([*wanted, *got]) if key[0] in self._watched or key in wanted]
        compared = ((f"{name}, txid {txid}", wanted.get((name, txid), []), got[name, txid]) for name, txid in keys)
        return [_said(what, expected, rows) for what, expected, rows in compared if _bag(expected) != _bag(rows)]

    def _others(self, step: Step) -> list[str]:
        driver, found = self._driver, []
        if step.committed not in (None, driver.committed):
            found.append(f"committed: expected {step.committed}, got {driver.committed}")
        for txid, status in step.status.items():
            if driver.status(txid) != status:
                found.append(f"status of txid {txid}: expected {status}, got {driver.status(txid)}")
        tables: list[tuple[str, Mapping[str, Any], Any]] = [
            ("state", step.states, driver.state),
            ("sink", step.sinks, driver.sink),
        ]
        for kind, wanted, view in tables:
            for name, rows in wanted.items():
                got = view(name).to_pylist()
                if _bag(rows) != _bag(got):
                    found.append(_said(f"{kind} {name}", rows, got))
        return found


def _bag(rows: list[Any]) -> list[str]:
    """Return the rows as sorted text, since their order across parallel tasks is undefined."""
    return sorted(_text(row) for row in rows)


def _text(row: Any) -> str:
    return json.dumps(row, default=str, sort_keys=True, ensure_ascii=False)


def _said(what: str, expected: list[Any], got: list[Any]) -> str:
    return f"{what}: expected {' '.join(_bag(expected)) or 'nothing'}, got {' '.join(_bag(got)) or 'nothing'}"


def _words(step: Step) -> str:
    words = [*(f"source {' '.join(map(str, call))}" for call in step.source), *step.do]
    return f" ({', '.join(words)})" if words else ""


def _sentences(error: ValidationError) -> str:
    return "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors(include_url=False))
