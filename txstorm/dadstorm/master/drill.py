"""Drills: a network runs undisturbed, and again while replicas and master are killed, stopped and frozen; compared.

The script of faults and the comparison are pure; `drill` runs both masters as programs of their own.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from txstorm.dadstorm.configuration import AT_LEAST_ONCE, AT_MOST_ONCE, Configuration, load
from txstorm.dadstorm.master.companion import COMMAND
from txstorm.errors import InputError, TxstormError
from txstorm.lanes import THREADS
from txstorm.operations.lifecycle import Waiting, ask
from txstorm.operations.status import read_status
from txstorm.results.read import list_sinks
from txstorm.results.views import SinkView

KINDS = {"kill": 4, "stop": 3, "freeze": 3, "master": 2}
"""Kinds of faults, and how often each one comes: SIGKILL or SIGSTOP of a replica, Freeze, SIGKILL of the master."""
SETTINGS = ("--set", "ack_timeout=2", "--set", "ping=4")
"""Options of the run that is disturbed."""
_HIT, _QUIET, _PATIENCE = 1.0, 3, 120.0
"""Seconds for which a stopped replica waits for a delivery: less than `ack_timeout`; how many faults in a row find a
network in which nothing moves when it is done; seconds for a master to start, or end."""
_DISTURBING = re.compile(r"^(?=\s*(crash|freeze|unfreeze)\s+\S+\s+\d+\s*$)", re.IGNORECASE | re.MULTILINE)
_SLOW = re.compile(r"^(?=\s*(interval\s+\S+|wait)\s+\d+\s*$)", re.IGNORECASE | re.MULTILINE)
_ELSEWHERE = "txstorm-drill-data"
Emitted = Mapping[str, Counter[tuple[str, ...]]]
"""Operator that none reads → the tuples that it emitted."""


class NetworkFault(NamedTuple):
    """One fault: `after` seconds a replica is stopped until it has an open delivery, which the fault then hits.

    `lasts`: seconds until it is made good, by SIGCONT, `Start` or `Unfreeze`; a master is started again at once.
    """

    kind: str
    operator: str
    replica: int
    after: float
    lasts: float


def fault_script(configuration: Configuration, seed: int) -> Iterator[NetworkFault]:
    """Yield faults without end; the same for the same replicas and seed."""
    chance = random.Random(seed)  # noqa: S311 - no secret
    replicas = [(one.id, replica) for one in configuration.operators for replica in range(one.replicas)]
    while True:
        kind = chance.choices([*KINDS], [*KINDS.values()])[0]
        lasts = chance.uniform(0.5, 6) if kind == "stop" else chance.uniform(0, 2)
        yield NetworkFault(kind, *chance.choice(replicas), round(chance.uniform(0, 0.3), 3), round(lasts, 3))


def kept(semantics: str, missing: int, extra: int) -> bool:
    """Return whether a semantics was kept: at-most-once may lose tuples, at-least-once may repeat some."""
    return (semantics == AT_MOST_ONCE or not missing) and (semantics == AT_LEAST_ONCE or not extra)


def differences(expected: Emitted, found: Emitted) -> tuple[int, int]:
    """Return how many tuples are missing in `found`, and how many are extra; their order does not matter."""
    pairs = [(expected.get(id, Counter()), found.get(id, Counter())) for id in {*expected, *found}]
    return sum((a - b).total() for a, b in pairs), sum((b - a).total() for a, b in pairs)


def key_field(configuration: Configuration, operator: str) -> int | None:
    """Return the field (from 1) that is compared of an operator's tuples; None: all.

    Which of the tuples with one key passes UNIQ depends on their order, so only its field is compared, also behind DUP.
    """
    one = configuration.operator(operator)
    if one.type == "UNIQ":
        return int(one.params[0])
    read = one.sources[0]
    passes = one.type == "DUP" and len(one.sources) == 1 and read.kind == "operator"
    return key_field(configuration, read.text) if passes else None


def drill(file: Path, faults: int, seed: int, options: Sequence[str], tell: Callable[[str], None]) -> dict[str, Any]:
    """Run the network in `file` undisturbed, and under `faults` faults that hit an open delivery; compare.

    Both runs get `options` of ``txstorm dadstorm run``; `tell` is called with a line for each fault.

    Raises:
        InputError: fewer than `faults` hit; or a run is refused.
        TxstormError: a run failed.
    """
    network = load(file)
    text = _DISTURBING.sub("% ", network.text)
    started = dict.fromkeys(one.operator for one in network.commands if one.name == "Start" and one.operator)
    good = [f"{line}\n" for id in started for line in (f"Start {id}", f"Interval {id} 0")]
    good += [f"Unfreeze {id} {replica}\n" for id in started for replica in range(network.operator(id).replicas)]
    with tempfile.TemporaryDirectory(prefix="txstorm-drill-") as place:
        plain = _Master(network, Path(place) / "undisturbed", options)
        plain.finish(_SLOW.sub("% ", text))
        master = _Master(network, Path(place) / "drilled", [*SETTINGS, *options])
        try:
            hits = _Drill(master, text, tell).run(fault_script(network, seed), faults)
            master.finish(f"{text}\n{''.join(good)}")
        finally:
            master.end()
        missing, extra = differences(plain.emitted(), master.emitted())
    is_kept, hit = kept(network.semantics, missing, extra), sum(hits.values())
    if is_kept and hit < faults:
        msg = f"{file}: {hit} of {faults} faults hit an open delivery before nothing moved any more; give the network "
        raise InputError(f"{msg}more lines, or an Interval that slows an operator, or ask for fewer --faults")
    shown = {"seed": seed, "semantics": network.semantics, "faults": hits}
    return {**shown, "missing": missing, "extra": extra, "kept": is_kept}


class _Master:
    """Runs of a network in a directory of its own, one after the other, each a program; entries beside it are links."""

    def __init__(self, configuration: Configuration, place: Path, options: Sequence[str]) -> None:
        self._configuration, self._options = configuration, options
        self._file, self.data = place / Path(configuration.name).name, place / "txstorm-drill"
        self._complaints = place / "txstorm-drill.err"
        self.program: subprocess.Popen[bytes] | None = None
        place.mkdir()
        (place / _ELSEWHERE).mkdir()
        own = {self._file.name, _ELSEWHERE, *(f"{one.id}.out" for one in configuration.operators)}
        for entry in configuration.directory.absolute().iterdir():
            if entry.name not in own:
                (place / entry.name).symlink_to(entry)
        sources = {source.text for one in configuration.operators for source in one.sources if source.kind == "file"}
        self._links: dict[str, str] = {}
        """Data file above the configuration → its link."""
        for number, source in enumerate(sorted(one for one in sources if ".." in Path(one).parts)):
            self._links[source] = f"{_ELSEWHERE}/{number}"
            (place / self._links[source]).symlink_to((configuration.directory / source).absolute())

    def start(self, text: str, *options: str) -> subprocess.Popen[bytes]:
        """Start a run of `text`, in the same data directory."""
        for source, link in self._links.items():
            text = re.sub(rf"(?<![^\s,]){re.escape(source)}(?![^\s,])", link, text)
        self._file.write_text(text, encoding="utf-8")
        command = [sys.executable, "-m", "txstorm", "dadstorm", "run", str(self._file), "--data-dir", str(self.data)]
        command += ["--local", "--standby", *self._options, *options]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(one for one in sys.path if one)}
        environment["TMPDIR"] = str(self._file.parent)  # for what a killed master leaves
        null = subprocess.DEVNULL
        with self._complaints.open("wb") as told:
            self.program = subprocess.Popen(command, stdin=null, stdout=null, stderr=told, env=environment)
        return self.program

    def finish(self, text: str) -> None:
        """Run `text` to its end."""
        self.end()
        try:
            if self.start(text).wait():
                raise self.failure()
        finally:
            self.end()

    def failure(self) -> TxstormError:
        """Return the error of a run that has failed."""
        code = None if self.program is None else self.program.returncode
        said = self._complaints.read_text(encoding="utf-8", errors="replace").strip()
        return (InputError if code == 2 else TxstormError)(f"a run of the drill ended with exit code {code}: {said}")

    def end(self) -> None:
        """Kill the run, if there is one; its replicas end with it."""
        if self.program is not None:
            self.program.kill()
            self.program.wait()
            self.program = None

    def emitted(self) -> Emitted:
        """Return what the operators that none reads have emitted, reduced to what is compared."""
        found = {}
        for one in self._configuration.operators:
            name = f"{one.id}_emitted"
            if not self._configuration.consumers(one.id) and name in list_sinks(self.data):
                key, rows = key_field(self._configuration, one.id), SinkView(self.data, name).to_pylist()
                shown = slice(None) if key is None else slice(key - 1, key)
                found[one.id] = Counter(tuple(row["fields"][shown]) for row in rows)
        return found


class _Drill:
    """Faults on a running network: what they hit, and what is to be made good again."""

    def __init__(self, master: _Master, text: str, tell: Callable[[str], None]) -> None:
        self._master, self._text, self._tell = master, text, tell
        self._hits: Counter[str] = Counter(dict.fromkeys(KINDS, 0))
        self._good: list[tuple[float, str, int | None]] = []
        """When which command makes a fault good again, and the process that is to go on before."""

    def run(self, script: Iterator[NetworkFault], faults: int) -> dict[str, int]:
        """Carry out faults until `faults` have hit, or nothing moves any more; return how many did, by kind."""
        quiet = 0
        self._master.start(self._text, "--stay")
        try:
            while self._hits.total() < faults and quiet < _QUIET:
                fault = next(script)
                THREADS.sleep(fault.after)
                self._make_good()
                quiet = quiet + 1 if self._try(fault) else 0
        finally:
            for _, _, pid in self._good:
                _signal(pid, signal.SIGCONT)
        return dict(self._hits)

    def _try(self, fault: NetworkFault) -> bool:
        """Stop the replica, and once it has an open delivery, carry out the fault; return whether nothing moved."""
        key, before = (fault.operator, fault.replica), self._replicas()
        pid = before[key]["pid"] if before[key]["state"] == "working" else None
        _signal(pid, signal.SIGSTOP)
        try:
            until, found, last = THREADS.monotonic() + _HIT, before, 0
            while THREADS.monotonic() < until:
                found = self._replicas()
                pending = found[key]["pending"] if (found[key]["pid"], found[key]["state"]) == (pid, "working") else 0
                if pending and pending == last:  # what it answered before it was stopped has arrived
                    self._carry_out(fault, pid)
                    return False
                last = pending
        finally:
            if pid not in [stopped for _, _, stopped in self._good]:
                _signal(pid, signal.SIGCONT)
        told = read_status(self._master.data).get("dadstorm") or {"position": 0, "commands": 1}
        over = told["position"] >= told["commands"] and not self._good
        numbers = [[(one["received"], one["held"]) for one in rows.values()] for rows in (before, found)]
        moves = any(one["pending"] or one["state"] in ("starting", "silent") for one in found.values())
        return over and numbers[0] == numbers[1] and not moves

    def _carry_out(self, fault: NetworkFault, pid: int | None) -> None:
        due, name = THREADS.monotonic() + fault.lasts, f"{fault.operator} {fault.replica}"
        match fault.kind:
            case "kill":
                _signal(pid, signal.SIGKILL)
                self._good.append((due, f"Start {fault.operator}", None))
            case "stop":
                self._good.append((due, f"Start {fault.operator}", pid))
            case "freeze":
                self._command(f"Freeze {name}")
                self._good.append((due, f"Unfreeze {name}", None))
            case _:
                self._master.end()
                for _, _, stopped in self._good:
                    _signal(stopped, signal.SIGCONT)  # to notice that its master has gone
                self._good = [(at, line, None) for at, line, _ in self._good]
                self._master.start(self._text, "--stay")
        self._hits[fault.kind] += 1
        self._tell(f"{fault.kind}: {name}, with an open delivery")

    def _make_good(self) -> None:
        now = THREADS.monotonic()
        due, self._good = [one for one in self._good if one[0] <= now], [one for one in self._good if one[0] > now]
        for _, line, pid in due:
            _signal(pid, signal.SIGCONT)
            self._command(line)

    def _command(self, line: str) -> dict[str, Any]:
        """Have a command carried out, as soon as there is a run; {}: it is refused, as the replica is dead."""
        until = THREADS.monotonic() + _PATIENCE
        while True:
            if self._master.program is None or self._master.program.poll() is not None:
                raise self._master.failure()
            try:
                return ask(self._master.data, COMMAND, {"line": line}, Waiting(10.0))
            except TxstormError as error:
                if " is refused: " in str(error):
                    return {}
                if THREADS.monotonic() > until:
                    raise
            THREADS.sleep(0.05)

    def _replicas(self) -> dict[tuple[str, int], dict[str, Any]]:
        return {(one["operator"], one["replica"]): one for one in self._command("Status")["replicas"]}


def _signal(pid: int | None, number: int) -> None:
    if pid is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
