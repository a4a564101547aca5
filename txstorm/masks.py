"""Masks: what messages, `repr` and ledgers may show of texts that can hold a password."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from itertools import zip_longest

HIDDEN = "…"
"""What stands in place of a secret."""

_SECRET = re.compile(
    r"(?i)passw|passphrase|pwd|secret|token|credential|auth(?!ors?$)|(api|access|private|account)[_.-]?key"
)
_NAME = re.compile(r"""(?<![\w.-])([\w.-]+)(?:["']\s{0,9}:|["']?\s{0,9}=)\s{0,9}""")
"""A name before its value: in a connection string, or in JSON."""
_VALUE = re.compile(r""""(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^\s;,&)}\]]*""")
_CONTAINERS = ("abfs", "abfss")
"""Schemes in which the part before the @ is the name of a container."""


def masked_url(text: str) -> str:
    """Return a URL, or an address such as ``user:password@host``, without user-info and query.

    A password may contain any character, and need not be escaped as it should be: in doubt more is hidden. In other
    texts, such as ``host=h password=p`` or JSON, values are hidden whose names say that they are secrets.
    """
    shown, parts, end = _masked_place(text), [], 0
    for name in _NAME.finditer(shown):
        if name.start() >= end and _SECRET.search(name[1]) and (value := _VALUE.match(shown, name.end())):
            parts += [shown[end : name.end()], HIDDEN]
            end = value.end()
    return "".join([*parts, shown[end:]])


def _masked_place(text: str) -> str:
    start, slashes, rest = text.partition("://")
    if not slashes:
        user, at, host = text.rpartition("@")
        return f"{HIDDEN}@{host}" if at and ":" in user else text
    found = re.search("[?#]", rest)
    place, query = (rest, "") if found is None else (rest[: found.start()], rest[found.start() :])
    if "@" in query:  # of the password, or of the query
        return f"{start}://{HIDDEN}"
    user, at, host = place.rpartition("@")
    if at and (":" in user or start.rpartition(":")[2].lower() not in _CONTAINERS):
        place = f"{HIDDEN}@{host}"
    return f"{start}://{place}{query[:1]}{HIDDEN if query[1:] else ''}"


def masked_call(text: str, parameters: Sequence[str] = ()) -> str:
    """Return ``NAME(ARGUMENTS)`` without secrets: arguments and entries whose names say so, and those in URLs.

    Args:
        text: arguments are Python literals; if one is not, all are hidden.
        parameters: names of the positional parameters.
    """
    name, parenthesis, _ = text.partition("(")
    if not parenthesis:
        return text
    try:
        call = ast.parse("_" + text[len(name) :].strip(), mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            return f"{name}({HIDDEN})"
        named = zip_longest(parameters[: len(call.args)], call.args, fillvalue="")
        given = [repr(_masked(str(known), ast.literal_eval(one))) for known, one in named]
        given += [_keyword(one.arg, _masked(one.arg or "", ast.literal_eval(one.value))) for one in call.keywords]
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return f"{name}({HIDDEN})"
    return f"{name}({', '.join(given)})"


def _keyword(name: str | None, value: object) -> str:
    return f"**{value!r}" if name is None else f"{name}={value!r}"


def _masked(name: str, value: object) -> object:
    if _SECRET.search(name) and value is not None:
        return HIDDEN
    if isinstance(value, str):
        return masked_url(value)
    if isinstance(value, bytes):
        return masked_url(value.decode("latin-1")).encode("latin-1", "replace")
    if isinstance(value, dict):
        return {_masked("", key): _masked(str(key), one) for key, one in value.items()}
    if isinstance(value, list | tuple) and len(value) == 2 and isinstance(value[0], str):  # a name, a value?
        pair = [_masked("", value[0]), _masked(value[0], value[1])]
        return pair if isinstance(value, list) else tuple(pair)
    if isinstance(value, list | tuple | set):
        return type(value)(_masked("", one) for one in value)
    return value
