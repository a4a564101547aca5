"""Companion of a run by replicas: its script, commands of other terminals, durable conditions, log and status."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from typing_extensions import override

from txstorm.api.names import counted
from txstorm.books.books import Books
from txstorm.books.requests import Request
from txstorm.coordinator.machine import Mode
from txstorm.dadstorm.conditions import UNROUTED, Conditions, Replica
from txstorm.dadstorm.configuration import Command, Configuration, parse_command
from txstorm.dadstorm.master.carrier import NUMBERS, TRAFFIC, Carried
from txstorm.dadstorm.master.network_run import NetworkRun, News, Resent
from txstorm.dadstorm.master.run_log import RunLog
from txstorm.dadstorm.processes.fleet import Dead, Refused, Silent, Started, Woke
from txstorm.dadstorm.topology import kept
from txstorm.errors import FencedError, InputError
from txstorm.ledger.paths import CONDITIONS, NETWORK
from txstorm.results.read import read_sink, read_state
from txstorm.runtime.companion import CommandHandler, Companion, CompanionSite, Decision
from txstorm.topology.graph import Topology

__all__ = ["COMMAND", "CONDITIONS", "NETWORK", "NetworkCompanion"]
COMMAND = "dadstorm.command"
LOG = "dadstorm.log"
"""Name of the log in the data directory."""


_WAYS = {"replicas": "by replicas", "topology": "as a topology"}


class NetworkCompanion(Companion):
    """Carries out the script and commands of other terminals, follows the fleet, and writes the log."""

    name = "dadstorm"
    every = 0.05

    def __init__(self, topology: Topology, run: NetworkRun) -> None:
        self._run, self._configuration = run, run.configuration
        self._site: CompanionSite | None = None
        self._log: RunLog | None = None
        self._wait_until = 0.0
        self._last: list[dict[str, Any]] = []
        """The replicas as they were when the run ended."""

    # -- what the driver calls ------------------------------------------------------------------------------------

    @override
    def check(self, books: Books, data_dir: Path) -> None:
        check_same(books.front_end(NETWORK), network_json(self._configuration), data_dir)

    @override
    def open(self, site: CompanionSite) -> None:
        self._site, session = site, site.session
        books, options = session.books, self._run.options
        now, before = network_json(self._configuration), books.front_end(NETWORK)
        stored = books.front_end(CONDITIONS)
        conditions = Conditions() if stored is None else Conditions.from_json(stored["conditions"])
        if before is not None and before["commands"][: conditions.position] != now["commands"][: conditions.position]:
            conditions = Conditions.from_json({**conditions.to_json(), "position": 0})
        self._log = RunLog(options.log or session.data_dir / LOG, session.lanes)
        self._run.committed_txid = session.currtx - 1
        self._run.open(conditions, self._traffic(), session.lanes)
        self._run.log, self._run.replicas = self._log.path, self.replicas
        self._store(conditions, {NETWORK: now} if before != now else {})
        if self._configuration.logging == "full":
            self._log_again(self._log.last_txid())
        self._look_over()

    def _traffic(self) -> dict[Replica, dict[str, int]]:
        session = self._opened.session
        if session.currtx == 1:
            return {}
        rows = read_state(session.data_dir, TRAFFIC.name, committed=session.currtx - 1).to_pylist()
        return {(row["operator"], row["replica"]): {name: row[name] for name in NUMBERS} for row in rows}

    @override
    def look(self) -> None:
        run = self._run
        if self._opened.state().mode in (Mode.STOPPING, Mode.CLOSED):
            run.stop()
            return
        self._hear()
        run.pump()
        self._go_on()

    @override
    def committed(self, last: int) -> None:
        for txid, done in self._run.committed(last):
            self._log_carried(txid, done)
        self._logged.flush()

    @override
    def commands(self) -> Sequence[CommandHandler[Any]]:
        return (CommandHandler(COMMAND, lambda arguments: str(arguments["line"]), self._decide),)

    @override
    def status(self) -> Mapping[str, Any]:
        return {
            "replicas": self.replicas() if self._run.is_open else self._last,
            "position": self._run.conditions.position,
            "commands": len(self._configuration.commands),
        }

    @override
    def close(self, error: BaseException | None) -> None:
        run = self._run
        if run.is_open:
            self._last = [{**one, "pid": None, "pending": 0} for one in self.replicas()]
        run.close()
        if self._log is not None:
            held = counted(sum(run.held.values()), "held tuple")
            why = "the run has ended" if error is None else f"the run has failed: {type(error).__name__}: {error}"
            self._log.write("end", f"{why}; {held}")
            self._log.close()

    # -- conditions ---------------------------------------------------------------------------------------------

    @property
    def _opened(self) -> CompanionSite:
        assert self._site is not None
        return self._site

    @property
    def _logged(self) -> RunLog:
        assert self._log is not None
        return self._log

    def _document(self, conditions: Conditions) -> dict[str, Any]:
        return {"format": 1, "conditions": conditions.to_json(), "log": str(self._logged.path.absolute())}

    def _store(self, conditions: Conditions, more: Mapping[str, Any] = {}) -> None:
        """Make conditions durable, and only then the present ones."""
        if not self._opened.session.books.put_if([], {CONDITIONS: self._document(conditions), **more}):
            raise FencedError("another coordinator has written to the ledger")
        self._run.conditions = conditions

    def _hear(self) -> None:
        """Take note of what happened to replicas."""
        run, conditions = self._run, self._run.conditions
        while run.news:
            conditions = self._heard(run.news.popleft(), conditions)
        if conditions != run.conditions:
            self._store(conditions)
        self._logged.flush()

    def _heard(self, news: News, conditions: Conditions) -> Conditions:
        key = (news.operator, news.replica)
        match news:
            case Started():
                self._run.killed.discard(key)
                return conditions
            case Dead(code=code):
                killed = key in self._run.killed
                self._run.killed.discard(key)
                conditions = conditions if killed else conditions.died(*key)
                self._note("crash", key, f"{_name(key)} is dead: {_ended(code)}")
            case Silent():
                conditions = conditions.died(*key)
                self._note("crash", key, f"{_name(key)} is silent, and is given up")
            case Refused(text=text):
                self._note("crash", key, f"{_name(key)} cannot be started: {text}")
                raise InputError(text)
            case Woke(code=code):
                self._note("crash", key, f"{_name(key)}, which was given up, has ended: {_ended(code)}")
            case Resent(tuples=tuples):
                self._note("resend", key, f"{counted(tuples, 'tuple')} sent again to {_name(key)}")
        return conditions

    def _go_on(self) -> None:
        """Carry out the commands of the script whose turn has come, with one write."""
        run, commands = self._run, self._configuration.commands
        monotonic = self._opened.session.lanes.monotonic
        conditions, done = run.conditions, list[tuple[Command, str | None, Conditions]]()
        while conditions.position < len(commands) and monotonic() >= self._wait_until:
            if run.options.step:
                if not run.steps:
                    break
                run.steps -= 1
            command = commands[conditions.position]
            conditions, refused = conditions.step().apply(command)
            done.append((command, refused, conditions))
            if command.name == "Wait":
                self._wait_until = monotonic() + (command.number or 0) / 1000
        if done:
            self._store(conditions)
            for one in done:
                self._carry_out(*one)
        self._look_over()

    def _look_over(self) -> None:
        over = self._run.conditions.position >= len(self._configuration.commands)
        self._run.script_over = over and self._opened.session.lanes.monotonic() >= self._wait_until

    def _carry_out(self, command: Command, refused: str | None, after: Conditions) -> None:
        if refused is not None:
            self._logged.write("refused", f"{command}: {refused}", operator=command.operator, reason=refused)
        else:
            replica = None if command.name in ("Interval", "Wait") else command.number
            self._logged.write("command", str(command), operator=command.operator, replica=replica)
            self._run.tell(command)
        if command.name == "Status":
            for one in self.replicas(after):
                self._logged.write("status", f"{_name((one['operator'], one['replica']))}: {one['state']}", **one)
        self._logged.flush()

    def _decide(self, control: Any, line: str, request: Request) -> Decision:
        command = parse_command(line, self._configuration)
        self._hear()
        conditions, refused = self._run.conditions.apply(command)
        if refused is not None:
            self._carry_out(command, refused, conditions)
            raise InputError(f"{command} is refused: {refused}")

        def act() -> None:
            if command.name == "Wait":
                self._wait_until = self._opened.session.lanes.monotonic() + (command.number or 0) / 1000
            self._run.conditions = conditions
            self._carry_out(command, None, conditions)
            self._look_over()

        result = {"command": str(command), **({"replicas": self.replicas()} if command.name == "Status" else {})}
        return Decision(result, act, {CONDITIONS: self._document(conditions)})

    # -- what is shown ------------------------------------------------------------------------------------------

    def replicas(self, conditions: Conditions | None = None) -> list[dict[str, Any]]:
        """Return state and numbers of every replica, as a ``Status`` logs them; `conditions`: not the present ones."""
        conditions = conditions or self._run.conditions
        return [
            self._replica((one.id, replica), url, conditions)
            for one in self._configuration.operators
            for replica, url in enumerate(one.addresses)
        ]

    def _replica(self, key: Replica, url: str, conditions: Conditions) -> dict[str, Any]:
        run, (operator, replica) = self._run, key
        numbers = run.traffic.get(key, {})
        return {
            "operator": operator,
            "replica": replica,
            "url": url,
            "state": self._state(key, conditions),
            "received": numbers.get("received", 0),
            "processed": numbers.get("processed", 0),
            "emitted": numbers.get("emitted", 0),
            "pending": max(0, run.pending.get(key, 0)),
            "held": run.held.get(key, 0) + (run.held.get((operator, UNROUTED), 0) if replica == 0 else 0),
            "pid": run.fleet.pid(operator, replica),
        }

    def _state(self, key: Replica, conditions: Conditions) -> str:
        state = self._run.fleet.state(*key)
        if key in conditions.dead:
            return "crashed"
        if state == "silent":
            return "silent"
        if key in conditions.frozen:
            return "frozen"
        if key[0] not in conditions.started:
            return "not started"
        return "working" if state == "live" else "starting"

    def _note(self, event: str, key: Replica, text: str, **facts: Any) -> None:
        url = self._configuration.operator(key[0]).addresses[key[1]] if key[1] >= 0 else None
        replica = key[1] if key[1] >= 0 else None
        self._logged.write(event, text, operator=key[0], replica=replica, url=url, **facts)

    def _log_carried(self, txid: int, done: Carried) -> None:
        for (operator, replica, reason), number in done.held.items():
            text = f"{counted(number, 'tuple')} of {_name((operator, replica))} held: {reason}"
            self._note("held", (operator, replica), text, txid=txid, reason=reason)
        for lost in done.lost:
            key, fields = (lost.operator, lost.replica), list(lost.item.fields)
            self._note("lost", key, f"{lost.item.id} is lost", id=lost.item.id, fields=fields, txid=txid)
        if self._configuration.logging == "full":
            for operator, rows in done.emitted.items():
                for id, replica, values in zip(rows.ids, rows.replicas, rows.fields, strict=True):
                    self._log_tuple(operator, replica, id, values, txid)

    def _log_tuple(self, operator: str, replica: int, id: str, fields: Sequence[str], txid: int) -> None:
        url = self._configuration.operator(operator).addresses[replica]
        text = f"tuple {url} {','.join(fields)}"
        self._note("tuple", (operator, replica), text, id=id, fields=list(fields), txid=txid)

    def _log_again(self, last: int) -> None:
        """Log the tuples of transactions that a killed master has committed and perhaps not logged."""
        session = self._opened.session
        if session.currtx == 1:
            return
        for one in self._configuration.operators:
            if kept(one, self._configuration):
                for row in read_sink(session.data_dir, f"{one.id}_emitted", last).to_pylist():
                    self._log_tuple(one.id, row["replica"], row["id"], row["fields"], row["_txid"])


def network_json(configuration: Configuration, way: str = "replicas") -> dict[str, Any]:
    """Return what a data directory records of a configuration, and of the way in which it is run."""
    known = configuration.to_json()
    return {"way": way, **{name: known[name] for name in ("semantics", "logging", "operators", "commands")}}


def check_same(before: Mapping[str, Any] | None, now: Mapping[str, Any], data_dir: Path) -> None:
    """Raise `InputError` if a configuration differs in more than commands from that of the data directory."""
    if before is None:
        return
    if before["way"] != now["way"]:
        raise InputError(
            f"{data_dir} is of a run {_WAYS[before['way']]}, and cannot be gone on with {_WAYS[now['way']]}; choose "
            "another --data-dir"
        )
    found = [f"{name}: it was {before[name]}, and is {now[name]}" for name in ("semantics", "logging")
             if before[name] != now[name]]  # fmt: skip
    ops = [{one["id"]: one for one in document["operators"]} for document in (before, now)]
    for id in dict.fromkeys([*ops[0], *ops[1]]):
        was, is_ = (some.get(id) for some in ops)
        if was is None or is_ is None:
            found.append(f"operator {id} {'is new' if was is None else 'is missing'}")
        else:
            found += [f"{id}: {name} was {was[name]}, and is {is_[name]}" for name in was
                      if was[name] != is_.get(name)]  # fmt: skip
    if found:
        raise InputError(
            f"the configuration is not that of {data_dir}: {'; '.join(found)}; only commands may change: put the rest "
            "back, or choose another --data-dir"
        )


def _name(key: Replica) -> str:
    return key[0] if key[1] == UNROUTED else f"{key[0]}-{key[1]}"


def _ended(code: int | None) -> str:
    if code is None:
        return "its connection has ended"
    return f"killed by signal {-code}" if code < 0 else f"it has ended with exit code {code}"
