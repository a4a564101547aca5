"""A topology as a value: the calls that build it, which can be carried out, or written as a Python program.

What is built from a file goes through it, so that the program written for a file builds the same topology.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta, tzinfo
from decimal import Decimal
from importlib import import_module
from keyword import iskeyword
from pathlib import PurePath
from typing import Any

import pyarrow as pa

from txstorm.api.state import arrow_type
from txstorm.topology.builder import TransactionalTopologyBuilder
from txstorm.topology.graph import Topology
from txstorm.typed import python_type

WIDTH = 100


class Call:
    """The call of a class or function, with values and other calls as arguments.

    Args:
        function: the class or function, which a module of txstorm makes public.
        *arguments, **keywords: of the call; a keyword of None is left out.
    """

    def __init__(self, function: Any, /, *arguments: Any, **keywords: Any) -> None:
        self.function, self.arguments = function, arguments
        self.keywords = {name: one for name, one in keywords.items() if one is not None}
        self.methods: tuple[tuple[str, Call], ...] = ()

    def then(self, method: str, /, *arguments: Any, **keywords: Any) -> Call:
        """Return this call, followed by one of a method of its result, which returns the same object."""
        made = Call(self.function, *self.arguments, **self.keywords)
        made.methods = (*self.methods, (method, Call(None, *arguments, **keywords)))
        return made

    def made(self) -> Any:
        """Carry the call out, and return its result."""
        result = self.function(*map(_made, self.arguments), **{name: _made(one) for name, one in self.keywords.items()})
        for name, call in self.methods:
            keywords = {one: _made(given) for one, given in call.keywords.items()}
            result = getattr(result, name)(*map(_made, call.arguments), **keywords)
        return result


@dataclass(frozen=True)
class Subscription:
    """Subscription of a bolt: the method of its declarer, such as ``fields_grouping``, and its arguments."""

    method: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class ComponentCall:
    """Component: its id, the call that makes it, the number of its tasks, and what it reads."""

    id: str
    call: Call
    tasks: int
    inputs: tuple[Subscription, ...] = ()


@dataclass
class Program:
    """The calls that build one topology.

    Attributes:
        id: the id of the topology.
        spout: its spout.
        bolts: its bolts, each after those that it reads.
        settings: its settings.
    """

    id: str
    spout: ComponentCall
    bolts: list[ComponentCall] = field(default_factory=list)
    settings: Mapping[str, Any] = field(default_factory=dict)

    def topology(self) -> Topology:
        """Build the topology; raise what its parts raise."""
        spout = self.spout
        builder = TransactionalTopologyBuilder(self.id, spout.id, spout.call.made(), spout.tasks)
        builder.set_settings(self.settings)
        for one in self.bolts:
            declarer = builder.set_bolt(one.id, one.call.made(), one.tasks)
            for read in one.inputs:
                getattr(declarer, read.method)(*read.arguments)
        return builder.build_topology()

    def python(self, summary: str) -> str:
        """Return a Python program with a variable ``topology``, and `summary` as the first line of its docstring."""
        imports = _Imports()
        imports.add("txstorm", "TransactionalTopologyBuilder")
        spout = self.spout
        call = _call("TransactionalTopologyBuilder", [self.id, spout.id, spout.call, spout.tasks], {}, imports)
        lines = [f"builder = {call}"]
        for one in self.bolts:
            reads = "".join(_call(f".{read.method}", read.arguments, {}, imports) for read in one.inputs)
            given = [_text(part, imports) for part in (one.id, one.call, one.tasks)]
            lines.append(_enclosed("builder.set_bolt(", given, f"){reads}"))
        if self.settings:
            lines.append(f"builder.set_settings({_text(dict(self.settings), imports)})")
        body = "\n".join([*lines, "topology = builder.build_topology()"])
        usage = "Run it where this file is, called NAME.py: txstorm run NAME"
        summary = summary.replace("\\", "\\\\").replace('"', '\\"')
        return f'"""{summary}\n\n{usage}\n"""\n\n{imports.text()}\n\n{body}\n'


def _made(value: Any) -> Any:
    if isinstance(value, pa.DataType) and pa.types.is_nested(value):
        value = _typed(value)
    if isinstance(value, Call):
        return value.made()
    if isinstance(value, Mapping):
        return {name: _made(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_made, value))
    return value


# -- text --------------------------------------------------------------------------------------------------------------


class _Imports:
    """The names that a program needs, by module; None: the module itself."""

    def __init__(self) -> None:
        self._names: dict[str, set[str]] = {}
        self._modules: set[str] = set()

    def add(self, module: str, name: str) -> str:
        self._names.setdefault(module, set()).add(name)
        return name

    def module(self, text: str) -> None:
        self._modules.add(text)

    def text(self) -> str:
        froms = [f"from {one} import {', '.join(sorted(names))}" for one, names in sorted(self._names.items())]
        groups: tuple[list[str], list[str], list[str]] = ([], [], [])
        for line in [*sorted(f"import {one}" for one in self._modules), *froms]:
            package = line.split()[1].split(".")[0]
            groups[0 if package in sys.stdlib_module_names else 2 if package == "txstorm" else 1].append(line)
        return "\n\n".join("\n".join(group) for group in groups if group)


def _public(function: Any, imports: _Imports) -> str:
    """Import `function` from the package nearest to the root that has it; return its name."""
    parts, name = function.__module__.split("."), function.__qualname__
    if parts[0] == "pyarrow":
        imports.module("pyarrow as pa")
        return f"pa.{name}"
    for length in range(1, len(parts) + 1):
        module = ".".join(parts[:length])
        if getattr(import_module(module), name, None) is function:
            return imports.add(module, name)
    raise AssertionError(f"{function!r} has no public name")


def _call(function: str, arguments: Iterable[Any], keywords: Mapping[str, Any], imports: _Imports) -> str:
    given = [_text(one, imports) for one in arguments]
    plain = {name for name in keywords if name.isascii() and name.isidentifier() and not iskeyword(name)}
    given += [f"{name}={_text(one, imports)}" for name, one in keywords.items() if name in plain]
    if others := {name: one for name, one in keywords.items() if name not in plain}:
        given.append(f"**{_text(others, imports)}")
    return _enclosed(f"{function}(", given, ")")


def _enclosed(opening: str, parts: Sequence[str], closing: str) -> str:
    """Write `parts` in one line if they fit, else each in a line of its own."""
    line = f"{opening}{', '.join(parts)}{closing}"
    if not parts or (len(line) <= WIDTH and "\n" not in line):
        return line
    inner = "".join(f"    {line}\n" for part in parts for line in f"{part},".split("\n"))
    return f"{opening}\n{inner}{closing}"


def _text(value: Any, imports: _Imports) -> str:
    """Return the text of an expression that has this value."""
    if isinstance(value, Call):
        text = _call(_public(value.function, imports), value.arguments, value.keywords, imports)
        for name, call in value.methods:
            text += _call(f".{name}", call.arguments, call.keywords, imports)
        return text
    if isinstance(value, str) and (variable := getattr(value, "variable", None)):  # taken from the environment
        imports.module("os")
        return f"os.environ[{_text(str(variable), imports)}]"
    if isinstance(value, str | PurePath):
        text = repr(str(value))
        return text if '"' in text else f'"{text[1:-1]}"'
    if isinstance(value, Mapping):
        pairs = [f"{_text(name, imports)}: {_text(one, imports)}" for name, one in value.items()]
        return _enclosed("{", pairs, "}")
    if isinstance(value, list):
        return _enclosed("[", [_text(one, imports) for one in value], "]")
    if isinstance(value, tuple):
        return _enclosed("(", [_text(one, imports) for one in value], ",)" if len(value) == 1 else ")")
    if isinstance(value, type):
        return value.__name__ if value.__module__ == "builtins" else imports.add(value.__module__, value.__name__)
    if isinstance(value, pa.DataType):
        return _text(_typed(value), imports)
    if isinstance(value, timedelta):
        imports.add("datetime", "timedelta")
        return _duration(value)
    if isinstance(value, Decimal | date | tzinfo):
        return _dated(value, imports)
    return repr(value)


def _dated(value: Decimal | date | tzinfo, imports: _Imports) -> str:
    imports.add(type(value).__module__, type(value).__name__)
    if isinstance(value, datetime):
        return f'datetime.fromisoformat("{value.isoformat()}")'
    return repr(value).replace("datetime.", "").replace("'", '"')


def _duration(value: timedelta) -> str:
    """Return the text of a duration in the largest unit in which it is whole."""
    units: Iterator[tuple[str, timedelta]] = (
        (name, timedelta(**{name: 1})) for name in ("days", "hours", "minutes", "seconds", "milliseconds")
    )
    unit, one = next(((name, one) for name, one in units if not value % one), ("microseconds", timedelta.resolution))
    return f"timedelta({unit}={value // one})" if value else "timedelta(0)"


# -- types -------------------------------------------------------------------------------------------------------------


def _typed(kind: pa.DataType) -> type | Call:
    """Return the Python type that means the Arrow type `kind`, or else the call of pyarrow's that makes it.

    Files name the entries of maps in any way, which no call says; so types are made by the call, too.
    """
    plain = python_type(kind)
    if arrow_type(plain) == kind:
        return plain
    if pa.types.is_decimal(kind):
        return Call(getattr(pa, f"decimal{kind.bit_width}"), kind.precision, kind.scale)
    if pa.types.is_timestamp(kind):
        return Call(pa.timestamp, kind.unit, kind.tz)
    if pa.types.is_struct(kind):
        return Call(pa.struct, list(map(_field, kind)))
    if pa.types.is_map(kind):
        return Call(pa.map_, _inner(kind.key_type), _field(kind.item_field), keys_sorted=kind.keys_sorted or None)
    if pa.types.is_fixed_size_list(kind):
        return Call(pa.list_, _field(kind.value_field), kind.list_size)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return Call(pa.list_ if pa.types.is_list(kind) else pa.large_list, _field(kind.value_field))
    return Call(pa.type_for_alias, str(kind))


def _field(one: pa.Field) -> Call:
    return Call(pa.field, one.name, _inner(one.type), nullable=None if one.nullable else False)


def _inner(kind: pa.DataType) -> Call:
    made = _typed(kind)
    return made if isinstance(made, Call) else Call(pa.type_for_alias, str(kind))
