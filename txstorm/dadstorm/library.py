"""Built-in library of CUSTOM operators: followers of a user, output to a file, and identity."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from txstorm.dadstorm.values import split_line, value
from txstorm.errors import InputError

FOLLOWERS = "followers.data"


class QueryFollowersFile:
    """Followers of the user in field 2, from ``followers.data`` beside the configuration.

    A line has a user and his followers, separated by commas as in data files, or as ``user: follower follower``.
    """

    def __init__(self, directory: Path = Path()) -> None:
        self._followers = read_followers(directory / FOLLOWERS)

    def getFollowers(self, fields: list[str]) -> list[list[str]]:  # noqa: N802 - the name that configurations use
        """Return a tuple of each follower; those of several lines add up, repeats included."""
        return [[one] for one in self._followers.get(value(fields[1]), ())] if len(fields) > 1 else []


class OutputOperator:
    """Writes tuples to ``OPERATOR.out``; whoever commits the results does so, exactly once."""

    def custom(self, fields: list[str]) -> list[list[str]]:
        """Return the tuple."""
        return [fields]

    def __getattr__(self, name: str) -> Callable[[list[str]], list[list[str]]]:
        """Return the same for any name of a method."""
        if name.startswith("_"):
            raise AttributeError(name)
        return self.custom


class IdentityOperator:
    """Passes tuples."""

    def custom(self, fields: list[str]) -> list[list[str]]:
        """Return the tuple."""
        return [fields]

    __getattr__ = OutputOperator.__getattr__


def read_followers(path: Path) -> dict[str, list[str]]:
    """Return user → followers; raise `InputError` if the file is missing or not UTF-8."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        msg = f"followers file {path} cannot be read: {error.strerror}; it belongs beside the configuration"
        raise InputError(msg) from None
    found: dict[str, list[str]] = {}
    for number, line in enumerate(lines, 1):
        try:
            fields = split_line(line.decode())
        except UnicodeDecodeError as error:
            msg = f"{path}:{number}: not UTF-8 ({error.reason} at byte {error.start} of the line); convert the file"
            raise InputError(msg) from None
        if fields is not None and len(fields) == 1 and ":" in fields[0]:
            fields = tuple(filter(None, re.split(r"[:\s]+", fields[0])))
        if fields:
            found.setdefault(value(fields[0]), []).extend(one for one in fields[1:] if one)
    return found
