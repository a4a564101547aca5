"""Files that a file spout has read: rows of its state, and the position in the order of arrival."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from txstorm.api.spout import Kept
from txstorm.spouts.files.listing import FileStatus
from txstorm.spouts.files.ranges import checked


class SeenFile(NamedTuple):
    """A file that has been read to its end.

    Attributes:
        size, modified: bytes and time (nanoseconds since 1970) that it had then.
        read: the offset up to which it was read.
        open: whether its last record had no line end.
        digest: digest of everything up to `read`; empty if unknown.
    """

    size: int
    modified: int
    read: int
    open: bool
    digest: str

    @property
    def status(self) -> FileStatus:
        """Size and time."""
        return self.size, self.modified


def kept_rows(metadata: Any) -> dict[str, dict[str, Any] | None]:
    """Return the rows of the files that the transaction with `metadata` finishes; None: the row is deleted."""
    rows: dict[str, dict[str, Any] | None] = dict.fromkeys(map(key_of, metadata.get("forgotten", ())))
    for name, *seen in metadata.get("files", ()):
        rows[key_of(name)] = SeenFile(*seen)._asdict()
    return rows


KEPT = Kept("files", {"file": str}, {"size": int, "modified": int, "read": int, "open": bool, "digest": str}, kept_rows)


def key_of(name: str) -> str:
    """Return a file's name as text that a table can hold; bytes that are not UTF-8 are escaped."""
    return name if name.isascii() else os.fsencode(name).decode("utf-8", "backslashreplace")


@dataclass(frozen=True)
class ArrivalPosition:
    """Position of the next batch: in a file, or after it if it is done.

    Attributes:
        file, offset, open: as those of `Position`.
        done: whether the file has been read to its end.
        number: number of files that have been begun.
        newest: newest time of the files of all listings that have been begun to their last file.
        status: size and time of the file as of the last batch.
        chain, digest: running digest of what has been read of the file, and the digest at `digested`.
        digested: the offset up to which they go; `offset` between transactions.
        finished: the files finished since the batch began.
    """

    file: str | None = None
    offset: int = 0
    open: bool = False
    done: bool = True
    number: int = 0
    newest: int = 0
    status: FileStatus = (0, 0)
    chain: str = ""
    digest: str = ""
    digested: int = 0
    finished: tuple[tuple[str, SeenFile], ...] = ()

    def resumed(self, offset: int) -> ArrivalPosition:
        """Return the position at `offset`, after the line end that the last record lacked."""
        return replace(self, offset=offset, open=False)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form that the metadata of a txid stores."""
        stored = {name: getattr(self, name) for name in _STORED}
        return {**stored, "size": self.status[0], "modified": self.status[1]}

    @classmethod
    def after(cls, metadata: Any) -> ArrivalPosition:
        """Return the position after the batch of `metadata`; the beginning for None."""
        if metadata is None:
            return cls()
        stored = dict(checked(metadata)["position"])
        status = stored.pop("size"), stored.pop("modified")
        return cls(**stored, status=status, digested=stored["offset"])


_STORED = ("file", "offset", "open", "done", "number", "newest", "chain", "digest")
