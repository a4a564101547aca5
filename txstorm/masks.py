"""Masks: what messages, `repr` and ledgers may show of texts that can hold a password."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from itertools import zip_longest

HIDDEN = "…"
"""What stands in place of a secret."""

_SECRET = re.compile(
    r"(?i)passw|passphrase|pwd|secret|token|credential|auth(?!ors?$|_hosts$)|bearer|jwt|cookie|signature"
    r"|(?<![a-z])(sas|pat)(?![a-z])|(api|access|private|account|shared|signing|encryption|ssh)[_.-]?key"
)
_NAME = re.compile(
    r"""(?<![\w.-])([\w.-]+)(?:["']\s{0,9}:|["']?\s{0,9}=)\s{0,9}"""
    r"""|(?:^|(?<=[\n'"]))[ \t]{0,9}([\w-]+):[ \t]+"""
    r"""|(?<!\S)--?([\w-]+)\s{1,9}(?!or\s)"""
)
"""A name before its value: in a connection string or in JSON, in a header, or as an option."""
_VALUE = re.compile(r""""(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^\s;,&)}\]]*""")
_SCHEME = r"(?i:bearer\s{1,9}|(?:basic|negotiate|token|apikey)\s{1,9}(?!(?-i:[a-z]+|\d+)(?![\w+/=.-])))"
_KNOWN = re.compile(
    rf"""(?:^|(?<=\n))\s{{0,9}}{_SCHEME}(?P<line>[^\n]+)"""
    rf"""|(?<=[:=,'"(])\s{{0,9}}{_SCHEME}(?P<value>[^\s'",;]+)"""
    r"|(?<![\w-])(?i:digest)\s{1,9}(?P<digest>\w+=[^\n]+)"
    r"|(?<![\w-])(?P<key>sk-[\w-]{16,}|[srp]k_(?:live|test)_\w+|gh[opsur]_\w{16,}|github_pat_\w+|glpat-[\w-]+"
    r"|xox[a-z]-[\w-]+|A[KS]IA[A-Z0-9]{12,}|AIza[\w-]{20,}|hf_\w{16,}|eyJ[\w-]{8,}\.[\w.-]+)"
    r"|-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----(?P<pem>[^'\"]*)"
)
"""Credentials that are recognized by themselves: after the name of their scheme, or by their first letters.

Schemes are words of messages too, such as the digest of a batch: what follows must not be a plain word, or a number."""
_SIGNS = (
    *("bearer", "basic", "negotiate", "token", "apikey", "digest", "private key", "eyj", "glpat-", "xox"),
    *(
        "sk-",
        "k_live_",
        "k_test_",
        "gho_",
        "ghp_",
        "ghs_",
        "ghu_",
        "ghr_",
        "github_pat_",
        "akia",
        "asia",
        "aiza",
        "hf_",
    ),
)
"""Parts of small letters, one of which is in each text that `_KNOWN` matches."""
_NAMED = (
    *("passw", "passphrase", "pwd", "secret", "token", "credential", "auth", "bearer", "jwt", "cookie", "signature"),
    *("sas", "pat", "key"),
)
"""The same for `_SECRET`."""
_URL = re.compile(r"[A-Za-z][\w+.:-]*://[^\s'\"]+")
_CONTAINERS = ("abfs", "abfss")
"""Schemes in which the part before the @ is the name of a container."""


def masked_url(text: str) -> str:
    """Return a URL, or an address such as ``user:password@host``, without user-info and query.

    A password may contain any character, and need not be escaped as it should be: in doubt more is hidden. Of other
    texts, see `masked_text`.
    """
    return _without_values(_masked_place(text))


def masked_text(text: str) -> str:
    """Return a text without secrets: those in its URLs, values whose names say so, and known forms of credentials."""
    return _without_values(_URL.sub(lambda url: _masked_place(url[0]), text) if "://" in text else text)


def _without_values(text: str) -> str:
    small = text.lower()  # most messages have none of these, and each dead letter has a message
    shown = _KNOWN.sub(_without_known, text) if any(one in small for one in _SIGNS) else text
    if not (any(one in small for one in _NAMED) and _SECRET.search(shown)):
        return shown
    parts, end = list[str](), 0
    for name in _NAME.finditer(shown):
        if name.start() < end or not _SECRET.search(name[1] or name[2] or name[3]):
            continue
        value = (_VALUE if name[2] is None else _LINE).match(shown, name.end())
        if value is not None and value[0]:
            parts += [shown[end : name.end()], HIDDEN]
            end = value.end()
    return "".join([*parts, shown[end:]])


_LINE = re.compile(r"[^\n'\"]*")


def _without_known(found: re.Match[str]) -> str:
    begin, end = found.span(found.lastgroup or 0)
    return found[0][: begin - found.start()] + HIDDEN + found[0][end - found.start() :]


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
        return masked_url(value.decode("latin-1")).replace(HIDDEN, "...").encode("latin-1", "replace")
    if isinstance(value, dict):
        return {_masked("", key): _masked(str(key), one) for key, one in value.items()}
    if isinstance(value, list | tuple) and len(value) == 2 and isinstance(value[0], str):  # a name, a value?
        pair = [_masked("", value[0]), _masked(value[0], value[1])]
        return pair if isinstance(value, list) else tuple(pair)
    if isinstance(value, list | tuple):
        before = ("", *value)
        options = (one if isinstance(one, str) and one.startswith("-") else "" for one in before)
        return type(value)(_masked(name, one) for name, one in zip(options, value, strict=False))
    if isinstance(value, set):
        return {_masked("", one) for one in value}
    return value
