"""Expressions: conditions and computed columns in a small grammar like SQL's, evaluated on Arrow columns.

A text is parsed once, when a topology is declared. In a task it is bound to the types of the columns that arrive, which
may differ from batch to batch, and then run on whole columns. It reads no clock, locale or random number. This is
one module, as the rules of the grammar, what they mean, and the messages about texts that break them belong together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from txstorm.api.names import near
from txstorm.bolts.functions import FUNCTIONS, cast, check_call, day_of, instant_of, type_named
from txstorm.bolts.operators import (
    BOOL,
    DATE,
    DIGITS,
    FLOAT,
    INT,
    NULL,
    PLACES,
    STR,
    TIME,
    Bound,
    Frame,
    arithmetic,
    choice,
    comparison,
    field,
    likeness,
    literal,
    logic,
    membership,
    negation,
    negative,
    presence,
)
from txstorm.errors import InputError
from txstorm.misfits import Misfit
from txstorm.tagged import MARK, value_of
from txstorm.typed import ARROW_ERRORS

if TYPE_CHECKING:
    from lark import Lark

LONGEST_TEXT, DEEPEST = 10_000, 100
"""Most characters of an expression, and how deep it may be nested."""
_TOO_DEEP = f"expected parts nested at most {DEEPEST} deep, got more"
_WORDS = "and or not is in between like case when then else null true false cast as end".split()
_TERMINALS = "\n".join(rf"{word.upper()}: /{word}\b/i" for word in _WORDS)
_GRAMMAR = rf"""
?start: condition
?condition: conjunction | conjunction (OR conjunction)+ -> either
?conjunction: negation | negation (AND negation)+       -> both
?negation: comparison | NOT negation                      -> negation
?comparison: sum
    | sum COMPARED sum                                    -> comparison
    | sum IS [NOT] NULL                                   -> presence
    | sum [NOT] IN "(" condition ("," condition)* ")"     -> membership
    | sum [NOT] BETWEEN sum AND sum                       -> between
    | sum [NOT] LIKE TEXT                                 -> likeness
?sum: product | product ((PLUS | MINUS) product)+         -> arithmetic
?product: unary | unary ((TIMES | OVER) unary)+           -> arithmetic
?unary: atom | MINUS unary                                -> negative
?atom: "(" condition ")"                                  -> group
    | (NUMBER | TEXT | DATE | TIMESTAMP | TRUE | FALSE | NULL)   -> literal
    | (NAME | QUOTED)                                     -> field
    | NAME "(" condition ("," condition)* ")"             -> call
    | NAME "(" ")"                                        -> call
    | CASE (WHEN condition THEN condition)+ [ELSE condition] END -> case
    | CAST "(" condition AS NAME ["(" NUMBER ("," NUMBER)* ")"] ")" -> cast

NAME: /(?!(?:{"|".join(_WORDS[:-1])})\b)[^\W\d]\w*/i
QUOTED: /`(?:[^`]|``)+`/
NUMBER: /(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?/
TEXT: /'(?:[^']|'')*'|"(?:[^"]|"")*"/
DATE.2: /date\s*(?:'[^']*'|"[^"]*")/i
TIMESTAMP.2: /timestamp\s*(?:'[^']*'|"[^"]*")/i
COMPARED: "==" | "=" | "!=" | "<>" | "<=" | ">=" | "<" | ">"
PLUS: "+"
MINUS: "-"
TIMES: "*"
OVER: "/"
{_TERMINALS}
%ignore /\s+/
"""
_OPERATORS = {"COMPARED", "IS", "NOT", "IN", "BETWEEN", "LIKE", "PLUS", "MINUS", "TIMES", "OVER", "AND", "OR"}
_SHOWN = {"$END": "the end", "RPAR": "')'", "LPAR": "'('", "COMMA": "','", "TEXT": "a text in quotes"}


@dataclass(frozen=True)
class _Node:
    """A part of a parsed expression.

    Attributes:
        rule: the rule of the grammar.
        text: the part as it was written.
        parts: its operands.
        value: what else it consists of: the name of a field, function or type, operators, or a constant and its type.
        depth: how deep its operands are nested; each operator of a chain such as ``a + b + c`` counts.
    """

    rule: str
    text: str
    parts: tuple[_Node, ...] = ()
    value: Any = None
    depth: int = 1


class Expression:
    """A parsed expression; it can be pickled, and equal texts are equal expressions. Get one from `parsed`.

    Attributes:
        text: the expression as it was written.
        fields: names of the fields that it reads, in order of appearance.
    """

    text: str
    fields: tuple[str, ...]

    def __init__(self, text: str) -> None:
        self.text, self._root = text, _parse(text)
        self.fields = tuple(dict.fromkeys(_fields_of(self._root)))
        self._bound: dict[tuple[pa.DataType, ...], Bound] = {}

    def __reduce__(self) -> tuple[type[Expression], tuple[str]]:
        return (Expression, (self.text,))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Expression) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"parsed({self.text!r})"

    @property
    def field(self) -> str | None:
        """The name of the field, if the expression is nothing else."""
        return self._root.value if self._root.rule == "field" else None

    @property
    def known_type(self) -> pa.DataType | None:
        """The type of the result if it is the same for all types of fields; None if it depends on them."""
        return _known_type(self._root)

    def type_in(self, types: Mapping[str, pa.DataType]) -> pa.DataType:
        """Return the type of the result for fields of these types.

        Raises:
            InputError: a field is not among them, or operands do not fit; the message says where.
        """
        return types[self.field] if self.field is not None and self.field in types else self._bind(types).kind

    def column(self, batch: pa.RecordBatch | pa.Table) -> pa.Array:
        """Return the value of the expression for each row.

        Raises:
            InputError: as `type_in`.
            Misfit: there is no value for a row, such as a quotient by zero; its `row` is the first of them.
        """
        columns = {}
        for name in self.fields:
            if batch.schema.names.count(name) == 1:
                columns[name] = _values(batch, name)
        bound = self._bind({name: column.type for name, column in columns.items()}, batch.schema.names)
        if self.field is not None:
            return columns[self.field]
        try:
            return bound.run(Frame(columns, batch.num_rows))
        except Misfit as error:
            if error.row is None or bound.text == self.text or self.text in str(error):
                raise
            raise Misfit(f"{error}, in {_shortened(self.text)}", error.row) from None

    def _bind(self, types: Mapping[str, pa.DataType], known: Sequence[str] = ()) -> Bound:
        for name in self.fields:
            if name not in types:
                names = list(known or types)
                there = f"; there {'is' if len(names) == 1 else 'are'} {', '.join(map(repr, names)) or 'none'}"
                raise InputError(f"{_shortened(self.text)}: there is no field {name!r}{near(name, names)}{there}")
        key = tuple(types[name] for name in self.fields)
        if key not in self._bound:
            self._bound[key] = _bound(self._root, types)
        return self._bound[key]


def parsed(text: str) -> Expression:
    """Parse an expression.

    Raises:
        InputError: the text does not follow the grammar, or names no function or type; the message says where.
    """
    return Expression(text)


def quoted(name: str) -> str:
    """Return the text of an expression that is the field `name`, in backticks if it needs them."""
    try:
        plain = parsed(name).field == name
    except InputError:
        plain = False
    return name if plain else "`{}`".format(name.replace("`", "``"))


def _values(batch: pa.RecordBatch | pa.Table, name: str) -> pa.Array:
    """Return a column as one array; values of several types, which are sent as tagged text, with their common type."""
    column, about = batch.column(name), batch.schema.field(name)
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if about.metadata != MARK:
        return column
    values = [None if text is None else value_of(text) for text in column.to_pylist()]
    try:
        return pa.array(values)
    except ARROW_ERRORS as error:
        kinds = ", ".join(sorted({type(value).__name__ for value in values if value is not None}))
        msg = f"the values of field {name!r} have no common type ({kinds}: {error}); emit values of one type"
        raise InputError(msg) from None


# -- parsing -----------------------------------------------------------------------------------------------------------


@cache
def _parser() -> Lark:
    from lark import Lark

    return Lark(_GRAMMAR, parser="lalr", propagate_positions=True, maybe_placeholders=True)


def _shortened(text: str) -> str:
    return text if len(text) <= 120 else f"{text[:119]}…"


def _parse(text: str) -> _Node:
    from lark.exceptions import UnexpectedInput

    if not isinstance(text, str):
        raise InputError(f"expected the text of an expression, got {type(text).__name__}")
    if len(text) > LONGEST_TEXT:
        raise InputError(f"{_shortened(text)}: expected at most {LONGEST_TEXT:,} characters, got {len(text):,}")
    try:
        tree = _parser().parse(text)
    except UnexpectedInput as error:
        at = len(text.rstrip()) if getattr(getattr(error, "token", None), "type", "") == "$END" else error.pos_in_stream
        raise _wrong(text, at or 0, _expected(error, text)) from None
    return _node(tree, text, 0)


def _wrong(text: str, at: int, why: str) -> InputError:
    line = text.count("\n", 0, at) + 1
    column = at - (text.rfind("\n", 0, at) + 1) + 1
    where = f"line {line}, column {column}" if "\n" in text else f"column {column}"
    return InputError(f"{where}: {why}, in {_shortened(text)}")


def _expected(error: Any, text: str) -> str:
    """Describe what was expected where a text does not follow the grammar, and what stands there."""
    token = getattr(error, "token", None)
    at = error.pos_in_stream
    if token is None and text[at] in "'\"`":
        return f"expected a closing {text[at]}, got the end"
    parser = getattr(error, "interactive_parser", None)
    names = set(parser.accepts() if parser is not None else error.allowed or ())
    if "NAME" in names and "TEXT" in names:
        wanted = ["a value, such as a field, a number or a text in quotes"]
    elif "NAME" in names:
        wanted = ["a type"]
    else:
        rest = sorted(names - _OPERATORS - {"LPAR"} if "PLUS" in names else names)
        wanted = ["an operator"] if names - set(rest) else []
        wanted += [_SHOWN.get(name, "a number" if name == "NUMBER" else name.lower()) for name in rest]
    got = "the end" if token is not None and token.type == "$END" else repr(str(token or text[at]))
    return f"expected {' or '.join(wanted)}, got {got}"


def _node(tree: Any, text: str, depth: int) -> _Node:
    from lark import Token

    start, end = tree.meta.start_pos, tree.meta.end_pos
    if depth > DEEPEST:
        raise _wrong(text, start, _TOO_DEEP)
    tokens = [child for child in tree.children if isinstance(child, Token)]
    parts = tuple(
        _node(one, text, depth + 1) for one in tree.children if one is not None and not isinstance(one, Token)
    )
    rule, words = str(tree.data), [token.type for token in tokens]
    value: Any = words
    try:
        if rule == "group":
            return parts[0]
        if rule == "literal":
            value = _constant(tokens[0])
        elif rule == "field":
            name = str(tokens[0])
            value = name[1:-1].replace("``", "`") if words[0] == "QUOTED" else name
        elif rule == "call":
            value = str(tokens[0]).lower()
            check_call(value, len(parts))
        elif rule == "cast":
            name, *numbers = [str(token) for token in tokens if token.type in ("NAME", "NUMBER")]
            if not all(number.isdigit() for number in numbers):
                numbers = ["-1"]
            value = type_named(name, [int(number) for number in numbers], text[start:end])
        elif rule == "likeness":
            value = ("NOT" in words, _unquoted(tokens[-1]))
        elif rule in ("arithmetic", "comparison"):
            value = [str(token) for token in tokens]
    except (InputError, ValueError) as error:
        raise _wrong(text, start, str(error)) from None
    behind = range(len(parts) - 1, -1, -1) if rule == "arithmetic" else [0] * len(parts)
    height = 1 + max((part.depth + more for part, more in zip(parts, behind, strict=True)), default=0)
    if height > DEEPEST:
        raise _wrong(text, start, _TOO_DEEP)
    return _Node(rule, text[start:end], parts, value, height)


def _unquoted(token: str) -> str:
    token = token[min(at for at in map(token.find, "'\"") if at >= 0) :]
    return token[1:-1].replace(token[0] * 2, token[0])


def _constant(token: Any) -> tuple[Any, pa.DataType]:
    """Return the value of a constant and its type; raise `ValueError` if it has none."""
    kind, text = token.type, str(token)
    if kind == "TEXT":
        return _unquoted(text), STR
    if kind == "DATE":
        return day_of(_unquoted(text)), DATE
    if kind == "TIMESTAMP":
        return instant_of(_unquoted(text)), TIME
    if kind != "NUMBER":
        return {"TRUE": (True, BOOL), "FALSE": (False, BOOL), "NULL": (None, NULL)}[kind]
    if "e" in text.lower():
        return float(text), FLOAT
    whole, point, places = text.partition(".")
    if not point and len(whole.lstrip("0")) < DIGITS and int(whole) < 1 << 63:
        return int(whole), INT
    if len(whole.lstrip("0")) + len(places) > DIGITS or len(places) > PLACES:
        msg = f"expected a number of at most {DIGITS} digits, at most {PLACES} of them after the point, got {text}"
        raise ValueError(msg)
    return Decimal(text), pa.decimal128(DIGITS, len(places))


def _fields_of(node: _Node) -> list[str]:
    return [node.value] if node.rule == "field" else [name for part in node.parts for name in _fields_of(part)]


# -- meaning -----------------------------------------------------------------------------------------------------------

_CONDITIONS = ("either", "both", "negation", "comparison", "presence", "membership", "between", "likeness")


def _known_type(node: _Node) -> pa.DataType | None:
    if node.rule in _CONDITIONS:
        return BOOL
    if node.rule == "call" and (kind := FUNCTIONS[node.value][2]) is not None:
        return kind
    if node.rule == "cast":
        return node.value
    return None if _fields_of(node) else _bound(node, {}).kind


def _bound(node: _Node, types: Mapping[str, pa.DataType]) -> Bound:
    """Bind a part of an expression to the types of the fields."""
    if node.rule == "field":
        return field(node.value, types[node.value], node.text)
    if node.rule == "literal":
        value, kind = node.value
        return literal(value, kind, node.text)
    return _MEANING[node.rule](node, [_bound(part, types) for part in node.parts])


def _chained(node: _Node, parts: Sequence[Bound]) -> Bound:
    result = parts[0]
    for symbol, part in zip(node.value, parts[1:], strict=True):
        result = arithmetic(symbol, result, part, node.text)
    return result


def _between(node: _Node, parts: Sequence[Bound]) -> Bound:
    one, least, most = parts
    both = [comparison(">=", one, least, node.text), comparison("<=", one, most, node.text)]
    return _unless("NOT" in node.value, logic("and", both, node.text))


def _case(node: _Node, parts: Sequence[Bound]) -> Bound:
    pairs = list(zip(parts[::2], parts[1::2], strict=False))
    return choice(pairs, parts[-1] if "ELSE" in node.value else literal(None, NULL, "null"), node.text)


def _unless(negated: bool, one: Bound) -> Bound:
    return negation(one, one.text) if negated else one


_MEANING: Mapping[str, Callable[[_Node, Sequence[Bound]], Bound]] = {
    "either": lambda node, parts: logic("or", parts, node.text),
    "both": lambda node, parts: logic("and", parts, node.text),
    "negation": lambda node, parts: negation(parts[0], node.text),
    "comparison": lambda node, parts: comparison(node.value[0], parts[0], parts[1], node.text),
    "presence": lambda node, parts: presence(parts[0], node.text, null="NOT" not in node.value),
    "membership": lambda node, parts: _unless("NOT" in node.value, membership(parts[0], parts[1:], node.text)),
    "between": _between,
    "likeness": lambda node, parts: _unless(node.value[0], likeness(parts[0], node.value[1], node.text)),
    "arithmetic": _chained,
    "negative": lambda node, parts: negative(parts[0], node.text),
    "call": lambda node, parts: FUNCTIONS[node.value][3](node.text, *parts),
    "case": _case,
    "cast": lambda node, parts: cast(parts[0], node.value, node.text),
}
