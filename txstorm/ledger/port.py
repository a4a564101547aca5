"""The port of the ledger: a tree of small versioned values, all-or-nothing writes, and one lease.

The rules of a write are pure functions here, so that every implementation (SQLite, memory, ZooKeeper, Delta) only
has to read and write entries.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from txstorm import faults
from txstorm.errors import ConflictError, InputError
from txstorm.ledger import paths as names

MAX_VALUE = 256 * 1024
"""Longest value in bytes (ZooKeeper loses the connection at 1 MB); longer ones go through `txstorm.ledger.values`."""

MAX_COMMIT = 800 * 1024
"""Largest sum of `op_size` over a commit that every store takes; ZooKeeper ends the connection at 1 MB."""

OP_BYTES = 128
"""What an operation takes on its way to a store, besides path and value, at most."""

ABSENT = -1
"""As an expected version: there must be no entry."""


class Entry(NamedTuple):
    """A stored value. A named tuple, as `Put` is, because they are made more often than anything else.

    Attributes:
        value: the bytes.
        version: 0 when created, one more with every `Put`; from 0 again after a `Delete`.
    """

    value: bytes
    version: int


class Put(NamedTuple):
    """Create or overwrite `path`; `expect` is None (whatever is there), `ABSENT`, or the version it must have."""

    path: str
    value: bytes
    expect: int | None = None


@dataclass(frozen=True)
class Delete:
    """Remove `path`; removing what is absent is an error only if `expect` is given."""

    path: str
    expect: int | None = None


@dataclass(frozen=True)
class Check:
    """Change nothing, but fail the whole commit unless `path` is at version `expect` (or `ABSENT`)."""

    path: str
    expect: int


Op = Put | Delete | Check


class Ledger(Protocol):
    """A handle on one ledger; usable from several threads, and from several handles and processes at once.

    Paths are segments joined by ``/`` without one at either end, such as ``coordinator/meta/17``; `InputError`
    otherwise. Every method raises `TxstormError` when the store cannot be reached and after `close`.
    """

    def get(self, path: str) -> Entry | None:
        """The entry at `path`, or None."""

    def children(self, path: str) -> list[str]:
        """Names directly below `path`, also of those that only have entries below themselves; whole numbers first.

        The empty path is the root. An unknown path has no children.
        """

    def scan(self, path: str) -> dict[str, Entry]:
        """The entries directly below `path` (name → entry), all of one moment, in the order of `children`."""

    def commit(self, ops: Sequence[Op], *, durable: bool = True) -> None:
        """Carry out `ops` in order, all or nothing; when it returns they are durable.

        Without `durable` a power failure may take them back, as long as no durable commit has followed: for what is
        written often and means nothing afterwards, such as the status of a run.

        An operation sees the effects of the earlier ones. A path may occur more than once.

        Raises:
            FencedError: this handle has lost its lease, see `check_lease`; nothing was changed.
            ConflictError: an entry is not at the expected version; nothing was changed.
            InputError: a malformed path or a value over `MAX_VALUE`; nothing was changed.
        """

    def acquire(self, owner: str) -> None:
        """Take the lease, which ends with `release`, `close`, the death of the process, or by being lost.

        Raises:
            HeldError: another handle, of this or another process, has it; names that owner.
        """

    def check_lease(self) -> None:
        """Return if this handle still has its lease, or never took it; without I/O in the usual case.

        Called before everything that only the holder may do outside the ledger. Waits while the connection to the
        store is only interrupted, as long as the store's settings say; the lease may end meanwhile, and then raises.

        Raises:
            FencedError: the lease was taken by this handle and is lost; stays so until `release` or `acquire`.
        """

    def wait_free(self, seconds: float) -> bool:
        """Wait until nobody has the lease, at most `seconds`; whether it looked free at last.

        What looks free may be taken before `acquire` comes to it.
        """

    def release(self) -> None:
        """Give the lease back; nothing happens if this handle does not have it."""

    def holder(self) -> str | None:
        """Who has the lease, in words, or None."""

    def close(self) -> None:
        """Release the lease and let go of the store; may be called twice."""


def checked_path(path: str, *, root: bool = False) -> str:
    """`path` if it is well-formed (or empty and `root` allows that); `InputError` otherwise."""
    if root and not path:
        return path
    if any(segment in ("", ".", "..") for segment in path.split("/")) or "\0" in path or not _is_unicode(path):
        msg = f"ledger path {path!r}: expected names joined by '/', none empty, '.' or '..', without NUL and surrogates"
        raise InputError(msg)
    return path


def _is_unicode(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


def check_ops(ops: Sequence[Op]) -> None:
    """`InputError` if a path is malformed or a value too long: called before anything is locked or written."""
    for op in ops:
        checked_path(op.path)
        if isinstance(op, Put) and len(op.value) > MAX_VALUE:
            msg = (
                f"ledger path {op.path!r}: a value has at most {MAX_VALUE} bytes, got {len(op.value)}; "
                "encode it with txstorm.ledger.values.encode_value and a blob directory"
            )
            raise InputError(msg)


def op_size(op: Op) -> int:
    """How many bytes `op` is of `MAX_COMMIT`."""
    return OP_BYTES + len(op.path) + (len(op.value) if isinstance(op, Put) else 0)


def in_commits(groups: Iterable[Sequence[Op]]) -> Iterator[list[Op]]:
    """The operations of `groups` in as few commits as every store takes (`MAX_COMMIT`), in order, each group whole."""
    some: list[Op] = []
    size = 0
    for group in groups:
        more = sum(map(op_size, group))
        if some and size + more > MAX_COMMIT:
            yield some
            some, size = [], 0
        some.extend(group)
        size += more
    if some:
        yield some


def outcome(op: Op, found: Entry | None) -> Entry | None:
    """What is at ``op.path`` after `op` when `found` was there before; `ConflictError` if that was not expected."""
    version = ABSENT if found is None else found.version
    expect = op.expect
    if expect is not None and expect != version:
        msg = (
            f"ledger path {op.path!r}: expected {_worded(expect)}, got {_worded(version)}; "
            "somebody else wrote it: read again and decide again"
        )
        raise ConflictError(msg)
    if isinstance(op, Put):
        return Entry(op.value, version + 1)
    return found if isinstance(op, Check) else None


def _worded(version: int) -> str:
    return "no entry" if version == ABSENT else f"version {version}"


_DELETED = {names.META: "ledger.meta", names.INTENTS: "ledger.intent"}


def pass_deleted(op: Op) -> None:
    """Pass the fault point of an entry that `op` removes, if there is one for what it is."""
    if isinstance(op, Delete) and (point := _DELETED.get(op.path.rpartition("/")[0])):
        faults.point(point)


def child_names(path: str, stored: Iterable[str]) -> list[str]:
    """The names directly below `path` among the `stored` paths, in the order of `Ledger.children`."""
    prefix = f"{path}/" if path else ""
    names = {other[len(prefix) :].split("/", 1)[0] for other in stored if other.startswith(prefix)}
    return sorted(names, key=name_order)


def name_order(name: str) -> tuple[bool, int, str]:
    """Sort key: whole numbers by size, then the other names."""
    number = name.isascii() and name.isdecimal()
    return (not number, int(name) if number else 0, name)
