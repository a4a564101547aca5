"""Parser of configurations: clause by clause by the grammar, then what lines say of each other; all faults at once."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib.resources import files
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

from txstorm.api.names import counted, near
from txstorm.dadstorm.configuration import AT_LEAST_ONCE, AT_MOST_ONCE, EXACTLY_ONCE, Command, Operator, Source
from txstorm.errors import ConfigurationError

if TYPE_CHECKING:
    from lark import Lark, Token

_SPELLED = {
    "$END": "the end of the line",
    "COMMA": "','",
    "OPEN": "'('",
    "CLOSE": "')'",
    "INT": "a number",
    "ID": "the id of an operator",
    "SOURCE": "a source",
    "URL": "an address",
    "PARAM": "a parameter",
    "AT_MOST_ONCE": AT_MOST_ONCE,
    "AT_LEAST_ONCE": AT_LEAST_ONCE,
    "EXACTLY_ONCE": EXACTLY_ONCE,
    **{one: one for one in ("UNIQ", "COUNT", "DUP", "FILTER", "CUSTOM")},
}
"""Terminals of the grammar as messages name them; others by their name in lower case."""
_SETTINGS = {one.lower(): one for one in ("Semantics", "LoggingLevel")}
_COMMANDS = {one.lower(): one for one in ("Start", "Status", "Crash", "Freeze", "Unfreeze", "Interval", "Wait")}
_CLAUSES = {
    "inputs": "input_ops",
    "replicas": "rep_fact",
    "routing": "routing",
    "addresses": "address",
    "spec": "operator_spec",
}
_KEYWORDS = {*_SETTINGS, *_COMMANDS, *_CLAUSES.values(), "input", "rep", "operator"}
_PARAMS = {
    "UNIQ": ("field",),
    "COUNT": (),
    "DUP": (),
    "FILTER": ("field", "condition", "value"),
    "CUSTOM": ("library", "class", "method"),
}
CONDITIONS = ("=", "<", ">")
_CLAUSE = re.compile(
    r'"[^"]*"?|(?<!\S)(?:(input[_\s]\s*ops)|(rep[_\s]\s*fact)|(routing)|(address)|(operator[_\s]\s*spec))(?![^\s,])',
    re.IGNORECASE,
)
_CONTINUES = re.compile(r"\s*(rep[_\s]\s*fact|routing|address|operator[_\s]\s*spec)(?![^\s,])", re.IGNORECASE)
_WORD = re.compile(r'"[^"]*"?|[^\s,()"]+|\S')
_TOPIC = re.compile(r"kafka://[^\s,/]+:[0-9]+/[A-Za-z0-9._-]+")


def _note(place: tuple[int, int], message: str) -> dict[str, Any]:
    return {"line": place[0], "column": place[1], "message": message}


@cache
def _grammar() -> Lark:
    from lark import Lark

    text = files("txstorm.dadstorm").joinpath("configuration.lark").read_text("utf-8")
    return Lark(text, parser="lalr", start=["setting", "command", *_CLAUSES], maybe_placeholders=False)


class Line:
    """A line with the lines that continue it, joined; offsets are of the whole, places of the file."""

    def __init__(self, parts: list[tuple[int, int, str]]) -> None:
        """Take the parts: number of the line, columns left out at its beginning, text."""
        self._parts = parts
        self.text = "\n".join(text for _, _, text in parts)
        self._starts = [0]
        for _, _, text in parts[:-1]:
            self._starts.append(self._starts[-1] + len(text) + 1)

    def place(self, offset: int) -> tuple[int, int]:
        """Return line and column, from 1, of an offset."""
        at = bisect_right(self._starts, offset) - 1
        number, left_out, _ = self._parts[at]
        return number, left_out + offset - self._starts[at] + 1

    def word(self, offset: int) -> tuple[int, str]:
        """Return the first word from an offset on, and where it begins; it is empty at the end of the line."""
        found = _WORD.search(self.text, offset)
        return (len(self.text), "") if found is None else (found.start(), found[0])


def lines(text: str) -> Iterator[Line]:
    """Split a text into lines, with those that continue them, without comments and empty ones."""
    parts: list[tuple[int, int, str]] = []
    for number, raw in enumerate(text.split("\n"), 1):
        line = raw.strip()
        if not line or line.startswith("%"):
            continue
        if parts and not (parts[-1][2].endswith(",") or _CONTINUES.match(line)):
            yield Line(parts)
            parts = []
        parts.append((number, len(raw) - len(raw.lstrip()), line))
    if parts:
        yield Line(parts)


def _shown(word: str) -> str:
    if not word:
        return "the end of the line"
    return repr(word if len(word) <= 60 else f"{word[:60]}…")


class Reader:
    """Reader of lines: the operators, settings and commands so far, with their faults and warnings."""

    def __init__(self, replicas: Mapping[str, int] | None = None) -> None:
        """Begin, with the numbers of replicas of operators that are known, for a command alone."""
        self.operators: dict[str, Operator] = {}
        self.commands: list[Command] = []
        self.settings: dict[str, Any] = {}
        self.warnings: list[dict[str, Any]] = []
        self._replicas: dict[str, int | None] = dict(replicas or {})
        self._reads: list[tuple[str, Line, list[Token]]] = []
        self._scripted: list[tuple[Line, list[Token]]] = []
        self._first: dict[str, int] = {}
        self._faults: dict[tuple[int, int], str] = {}

    def finish(self, name: str) -> None:
        """Check what lines say of each other; raise `ConfigurationError` if anything has faults."""
        for id, line, tokens in self._reads:
            sources = tuple(self._source(line, id, one) for one in tokens)
            if id in self.operators and not self.operators[id].sources:
                self.operators[id] = replace(self.operators[id], sources=tuple(dict.fromkeys(sources)))
        self._check_cycles()
        for line, tokens in self._scripted:
            self._check_command(line, tokens)
        if self._faults:
            places = sorted(self._faults.items())
            raise ConfigurationError(name, [_note(place, message) for place, message in places])

    def read(self, line: Line) -> None:
        """Take the setting, operator or command that a line is."""
        first = line.word(0)[1].lower()
        clauses = [one for one in _CLAUSE.finditer(line.text) if one.lastindex]
        if clauses and (clauses[0].lastindex == 1 or first not in _KEYWORDS):
            self._operator(line, clauses)
        elif first in _SETTINGS:
            self._setting(line)
        else:
            self.command(line)

    def command(self, line: Line) -> None:
        """Take the command that a line is."""
        word = line.word(0)[1]
        if word.lower() not in _COMMANDS:
            names = [*_SETTINGS.values(), *_COMMANDS.values()]
            self._unlike(line, 0, "a line", ["an operator", "a setting", "a command"], names)
        elif tokens := self._tokens(line, "command", word, (0, len(line.text))):
            self._scripted.append((line, tokens))

    def _fault(self, line: Line, offset: int, message: str) -> None:
        self._faults.setdefault(line.place(offset), message)

    def _warn(self, line: Line, token: Token, message: str) -> None:
        self.warnings.append(_note(line.place(token.start_pos or 0), message))

    def _unlike(self, line: Line, offset: int, what: str, expected: Sequence[str], known: Sequence[str] = ()) -> None:
        """Note that at `offset` there is something else than `expected`, with words of `known` that are near."""
        at, word = line.word(offset)
        listed = f"{', '.join(expected[:-1])} or {expected[-1]}" if len(expected) > 1 else expected[0]
        self._fault(
            line, at, f"{what}: expected {listed}, got {_shown(word)}{near(word, list(known or expected)[:1000])}"
        )

    def _seen(self, line: Line, offset: int, key: str) -> int | None:
        """Return the line in which `key` was first; None: here."""
        first = self._first.get(key)
        self._first.setdefault(key, line.place(offset)[0])
        return first

    def _tokens(self, line: Line, rule: str, what: str, span: tuple[int, int], then: str = "$END") -> list[Token]:
        """Parse a part of a line by a rule of the grammar; an empty list: it has a fault, which is noted.

        `span` is the part; `what` names it in messages, and `then` what may follow it.
        """
        from lark import UnexpectedCharacters, UnexpectedToken

        start, end = span
        try:
            tree = _grammar().parse(line.text[start:end], start=rule)
        except UnexpectedCharacters as error:
            wanted, offset = error.allowed or set(), start + (error.pos_in_stream or 0)
        except UnexpectedToken as error:
            wanted, offset = error.accepts or error.expected, end
            if error.token.type != "$END":
                offset = start + (error.pos_in_stream or 0)
        else:
            tokens: list[Token] = list(tree.children)  # type: ignore[arg-type]
            for one in tokens:
                one.start_pos = start + (one.start_pos or 0)
            return tokens
        wanted = {then if one == "$END" else one for one in wanted}
        order = [*_SPELLED, *sorted(wanted - _SPELLED.keys())]
        expected = [_SPELLED.get(one, one.lower()) for one in sorted(wanted, key=order.index)]
        self._unlike(line, offset, what, expected)
        return []

    def _setting(self, line: Line) -> None:
        if tokens := self._tokens(line, "setting", line.word(0)[1], (0, len(line.text))):
            if (first := self._seen(line, 0, f"setting {tokens[0].lower()}")) is not None:
                self._fault(line, 0, f"{tokens[0]}: expected once, got again; it is in line {first} already")
            self.settings[tokens[0].lower()] = tokens[1].lower()

    def _operator(self, line: Line, clauses: list[re.Match[str]]) -> None:
        """Take the operator that a line is, clause by clause."""
        if clauses[0].lastindex == 1:
            clauses = clauses[1:]
        id = line.word(0)[1]
        kinds = ["inputs", *(list(_CLAUSES)[(one.lastindex or 1) - 1] for one in clauses)]
        spans = pairwise([0, *(one.start() for one in clauses), len(line.text)])
        taken: dict[str, list[Token]] = {}
        missing = list(_CLAUSES)
        before = len(self._faults)
        for kind, span in zip(kinds, spans, strict=True):
            if missing[:1] != [kind]:
                self._unlike(line, span[0], id, [_CLAUSES[missing[0]] if missing else _SPELLED["$END"]])
            if kind in missing:
                del missing[: missing.index(kind) + 1]
            what = id if kind == "inputs" else f"{id}, {_CLAUSES[kind]}"
            taken.setdefault(kind, self._tokens(line, kind, what, span, _CLAUSES[missing[0]] if missing else "$END"))
        if missing:
            self._unlike(line, len(line.text), id, [_CLAUSES[missing[0]]])
        self._declare(line, id, taken, before)

    def _declare(self, line: Line, id: str, taken: dict[str, list[Token]], before: int) -> None:
        """Check the clauses of an operator, as far as they could be parsed, and note it if there are no new faults."""
        if id.lower() in _KEYWORDS:
            self._fault(line, 0, f"{id}: expected the id of an operator, got a keyword")
        if (first := self._seen(line, 0, f"operator {id}")) is not None:
            self._fault(line, 0, f"{id}: expected an id of its own, got that of the operator in line {first}")
        addresses = taken.get("addresses", [])[1:]
        for one in addresses:
            if (first := self._seen(line, one.start_pos or 0, f"address {one}")) is not None:
                self._warn(line, one, f"{id}: address {str(one)!r} is used twice, first in line {first}")
        replicas = self._replica_count(line, id, taken.get("replicas", [])[1:], addresses)
        routing, routing_field = self._routing(line, id, taken.get("routing", [])[1:])
        kind, params = self._spec(line, id, taken.get("spec", [])[1:])
        self._replicas.setdefault(id, replicas)
        self._reads.append((id, line, taken["inputs"][2:]))
        if len(self._faults) == before:
            self.operators[id] = Operator(
                id,
                (),
                replicas or 0,
                routing,
                routing_field,
                tuple(map(str, addresses)),
                kind,
                params,
                line.place(0)[0],
            )

    def _replica_count(self, line: Line, id: str, tokens: list[Token], addresses: list[Token]) -> int | None:
        if not tokens:
            return None
        number, offset = int(tokens[0]), tokens[0].start_pos or 0
        if number == 0:
            self._fault(line, offset, f"{id}, rep_fact: expected at least 1, got 0")
        elif addresses and number != len(addresses):
            expected = f"{len(addresses)}, the number of addresses"
            self._fault(line, offset, f"{id}, rep_fact: expected {expected}, got {number}")
        return number

    def _routing(self, line: Line, id: str, tokens: list[Token]) -> tuple[Any, int | None]:
        if not tokens or tokens[0].type != "HASHING":
            return (tokens[0].lower() if tokens else "primary"), None
        for one in tokens:
            if one.type == "INT":
                return "hashing", self._field(line, one, f"{id}, hashing")
        self._warn(line, tokens[0], f"{id}: {''.join(tokens)} is taken as hashing(1)")
        return "hashing", 1

    def _field(self, line: Line, token: Token, what: str) -> int:
        """Return the number of a field, from 1."""
        text = _unquoted(token)
        if not re.fullmatch("[0-9]{1,18}", text) or int(text) == 0:
            self._fault(line, token.start_pos or 0, f"{what}: expected a field, counted from 1, got {_shown(text)}")
            return 1
        return int(text)

    def _spec(self, line: Line, id: str, tokens: list[Token]) -> tuple[Any, tuple[str, ...]]:
        """Return type and parameters, the latter as the grammar wants them also where the file has an old form."""
        if not tokens:
            return "DUP", ()
        kind, given = tokens[0].type, tokens[1:]
        params = [_unquoted(one) for one in given]
        if kind == "FILTER" and len(given) == 2 and given[1].startswith('"') and params[1] not in CONDITIONS:
            self._warn(line, given[0], f"{id}: FILTER {given[0]},{given[1]} is taken as FILTER {given[0]},=,{given[1]}")
            given, params = [given[0], given[0], given[1]], [params[0], "=", params[1]]
        elif kind == "CUSTOM" and len(given) == 1 and params[0].strip(".").count(".") >= 2:
            params = params[0].rsplit(".", 2)
            self._warn(line, given[0], f"{id}: CUSTOM {given[0]} is taken as CUSTOM {','.join(params)}")
            given = given * 3
        wanted = _PARAMS[kind]
        if len(params) != len(wanted):
            offset = given[len(wanted)].start_pos or 0 if len(params) > len(wanted) else len(line.text)
            form = f"{kind} {','.join(wanted)}".strip()
            self._fault(line, offset, f"{id}: expected {form}, got {counted(len(params), 'parameter')}")
            return kind, tuple(params)
        if kind in ("UNIQ", "FILTER"):
            params[0] = str(self._field(line, given[0], f"{id}, {kind}"))
        if kind == "FILTER" and params[1] not in CONDITIONS:
            self._fault(line, given[1].start_pos or 0, f"{id}, FILTER: expected =, < or >, got {_shown(params[1])}")
        return kind, tuple(params)

    def _source(self, line: Line, id: str, token: Token) -> Source:
        text, offset = str(token), token.start_pos or 0
        if text in self._replicas:
            kind: Literal["operator", "file", "kafka"] = "operator"
        elif text.lower().startswith("kafka:"):
            kind = "kafka"
            if not _TOPIC.fullmatch(text):
                self._fault(line, offset, f"{id}: expected kafka://HOST:PORT/TOPIC, got {_shown(text)}")
        else:
            kind = "file"
            if not re.search("[./]", text):
                expected = "an operator, a file (with '.' or '/') or kafka://HOST:PORT/TOPIC"
                hint = near(text, list(self._replicas)[:1000])
                self._fault(line, offset, f"{id}: expected {expected}, got {_shown(text)}{hint}")
        if self._seen(line, offset, f"source {text} of {id}") is not None:
            self._warn(line, token, f"{id}: source {text!r} is given twice, and read once")
        return Source(kind, text)

    def _check_cycles(self) -> None:
        """Note every cycle, at a source that closes it: an operator of the same line or a later one."""
        reads = {id: (line, tokens) for id, line, tokens in reversed(self._reads)}
        edges = {id: [str(one) for one in reads[id][1] if one in reads] for id in reversed(reads)}
        index = {id: at for at, id in enumerate(edges)}
        for _ in range(100):  # an error lists no more faults
            try:
                TopologicalSorter(edges).prepare()
            except CycleError as error:
                cycle = error.args[1]  # each is a source of the one behind it; the first is the last again
                source, target = min(pairwise(cycle), key=lambda pair: index[pair[1]])
                line, tokens = reads[target]
                token = next(one for one in tokens if one == source)
                around = " <- ".join(reversed(cycle))
                self._fault(line, token.start_pos or 0, f"{target}: expected no cycle, got {around}")
                edges[target] = [one for one in edges[target] if one != source]
            else:
                return

    def _check_command(self, line: Line, tokens: list[Token]) -> None:
        """Note an unknown operator or replica of a command; take the command."""
        name = _COMMANDS[tokens[0].lower()]
        ids = [one for one in tokens if one.type == "ID"]
        numbers = [one for one in tokens if one.type == "INT"]
        for id in ids:
            if id not in self._replicas:
                self._unlike(line, id.start_pos or 0, name, [_SPELLED["ID"]], list(self._replicas))
            elif name in ("Crash", "Freeze", "Unfreeze"):
                replicas = self._replicas[id]
                if replicas is not None and int(numbers[0]) >= max(1, replicas):
                    expected = f"a replica of {id}, 0 to {replicas - 1}" if replicas > 1 else f"replica 0 of {id}"
                    self._unlike(line, numbers[0].start_pos or 0, name, [expected])
        operator, number = next(map(str, ids), None), next(map(int, numbers), None)
        self.commands.append(Command(name, operator, number))


def _unquoted(token: Token) -> str:
    return token[1:-1] if token.startswith('"') else str(token)
