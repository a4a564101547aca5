"""File source of operator networks: the lines of data files, divided among the replicas of the operators that read them.

Metadata of a txid: ``{"v": 1, "files": {path: ...}, "parts": {...}}``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from txstorm.dadstorm.values import Fields


class Part(NamedTuple):
    """The share of one replica in a file: positions are kept for each.

    Attributes:
        operator: the operator that reads the file.
        replica: the replica.
        file: the file, as the configuration has it.
    """

    operator: str
    replica: int
    file: str


class Line(NamedTuple):
    """One line of a file, which is a tuple.

    Attributes:
        id: ``FILE:LINE``.
        fields: its fields.
    """

    id: str
    fields: Fields


Limits = Mapping[Part, int]
"""Part → the maximum number of its lines in a transaction; a part that is missing gives none."""


class FileParts:
    """Data files of a configuration, read in parts: N lines are divided at the first plan; appended ones go to the last.

    Args:
        configuration: the configuration.
    """

    def __init__(self, configuration: Any) -> None:
        self.parts: tuple[Part, ...] = ()

    def plan(self, before: Any, rows: int, limits: Limits | None = None) -> Any:
        """Return the metadata of the next transaction; None if there are no lines for it.

        Args:
            before: the metadata of the transaction before; None: there is none.
            rows: the maximum number of lines.
            limits: the maximum number of lines of each part; None: no limits but `rows`.
        """

    def read(self, metadata: Any, part: Part) -> list[Line]:
        """Return the lines of a part in a transaction; raise `SpoutError` if they are not those that were planned."""
        raise NotImplementedError

    def caught_up(self, metadata: Any) -> bool:
        """Return whether all lines that the files have now are in transactions up to the one with `metadata`."""
        raise NotImplementedError
