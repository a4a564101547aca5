"""The ledger's port: a tree of small versioned values, atomic commits, and one lease.

The rules of a commit are pure functions here, so that every implementation (SQLite, memory, ZooKeeper, Delta) only
has to read and write entries.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, Protocol, TypeVar

from txstorm import faults
from txstorm.errors import ConflictError, InputError
from txstorm.ledger import paths as names

T = TypeVar("T")
MAX_VALUE = 256 * 1024
"""Maximum length of a value in bytes (ZooKeeper drops the connection at 1 MB); longer ones: `txstorm.ledger.values`."""

MAX_COMMIT = 800 * 1024
"""Largest commit that every store accepts, as a sum of `op_size`; ZooKeeper drops the connection at 1 MB."""

OP_BYTES = 128
"""Upper bound on the bytes that an operation needs in a request, in addition to path and value."""

ABSENT = -1
"""Expected version of an entry that must not exist."""


class Entry(NamedTuple):
    """A stored value with its version; like `Put`, a named tuple because very many are created.

    Attributes:
        value: the stored bytes.
        version: 0 when created, incremented by every `Put`; restarts at 0 after a `Delete`.
    """

    value: bytes
    version: int


class Put(NamedTuple):
    """Operation that creates or overwrites `path`; `expect`: None (unconditional), `ABSENT` or a version."""

    path: str
    value: bytes
    expect: int | None = None


@dataclass(frozen=True)
class Delete:
    """Operation that deletes `path`; deleting an absent entry is an error only if `expect` is given."""

    path: str
    expect: int | None = None


@dataclass(frozen=True)
class Check:
    """Operation that changes nothing, but fails the whole commit unless `path` is at version `expect` (or `ABSENT`)."""

    path: str
    expect: int


Op = Put | Delete | Check


class Ledger(Protocol):
    """Handle on one ledger, thread-safe; other handles and processes may use the ledger at the same time.

    Paths are segments joined by ``/``, without a leading or trailing slash, such as ``coordinator/meta/17``; any other
    path raises `InputError`. Every method raises `TxstormError` when the store cannot be reached, and after `close`.
    """

    def get(self, path: str) -> Entry | None:
        """Return the entry at `path`; None if there is none."""

    def children(self, path: str) -> list[str]:
        """Return the names directly below `path`, including those with entries only further below; whole numbers first.

        The empty path is the root. An unknown path has no children.
        """

    def scan(self, path: str) -> dict[str, Entry]:
        """Return name → entry for the entries directly below `path`: a consistent snapshot, in order of `children`."""

    def commit(self, ops: Sequence[Op], *, durable: bool = True) -> None:
        """Carry out `ops` in order and atomically (all or none); they are durable when this returns.

        Without `durable`, a power failure may undo the commit until a durable one has followed: for values that are
        written often and soon obsolete, such as the status of a run.

        An operation sees the effects of earlier ones. A path may occur more than once.

        Raises:
            FencedError: this handle has lost its lease, see `check_lease`; nothing was changed.
            ConflictError: an entry is not at the expected version; nothing was changed.
            InputError: a path is malformed or a value is longer than `MAX_VALUE`; nothing was changed.
        """

    def acquire(self, owner: str) -> None:
        """Acquire the lease; it ends with `release`, `close` or the process, or when it is lost.

        Raises:
            HeldError: another handle, of this or another process, holds it; the error names the owner.
        """

    def check_lease(self) -> None:
        """Raise `FencedError` if this handle has lost the lease that it acquired; usually does no I/O.

        Called before every action outside the ledger that only the holder may take. While the connection to the store
        is interrupted, it blocks for as long as the store's settings allow; it raises if the lease ends meanwhile.

        Raises:
            FencedError: this handle has lost the lease it acquired; raised until `release` or `acquire`.
        """

    def wait_free(self, seconds: float) -> bool:
        """Block until the lease is free, for at most `seconds`; return whether it is.

        Another process may acquire it before this one does.
        """

    def release(self) -> None:
        """Release the lease; do nothing if this handle does not hold it."""

    def holder(self) -> str | None:
        """Return a description of the lease's holder; None if the lease is free."""

    def close(self) -> None:
        """Release the lease and close the connection to the store; may be called twice."""


@lru_cache(maxsize=1024)  # a run asks for the same paths again and again
def checked_path(path: str, *, root: bool = False) -> str:
    """Return `path` if it is well-formed, or if it is empty and `root` is true; raise `InputError` otherwise."""
    if root and not path:
        return path
    odd = "\0" in path or (not path.isascii() and any("\ud800" <= character <= "\udfff" for character in path))
    if odd or any(segment in ("", ".", "..") for segment in path.split("/")):
        raise InputError(
            f"ledger path {path!r}: expected names joined by '/', none empty, '.' or '..', without NUL and surrogates"
        )
    return path


def check_ops(ops: Sequence[Op]) -> None:
    """Raise `InputError` if a path in `ops` is malformed or a value is too long; call before locking or writing."""
    for op in ops:
        checked_path(op.path)
        if isinstance(op, Put) and len(op.value) > MAX_VALUE:
            raise InputError(
                f"ledger path {op.path!r}: a value has at most {MAX_VALUE} bytes, got {len(op.value)}; "
                "encode it with txstorm.ledger.values.encode_value and a blob directory"
            )


def op_size(op: Op) -> int:
    """Return the size of `op` in bytes, as `MAX_COMMIT` counts it."""
    return OP_BYTES + len(op.path) + (len(op.value) if isinstance(op, Put) else 0)


def in_commits(groups: Iterable[Sequence[Op]]) -> Iterator[list[Op]]:
    """Batch `groups` of operations, in order, into few commits of at most `MAX_COMMIT` bytes; no group is split."""
    pending: list[Op] = []
    size = 0
    for group in groups:
        more = sum(map(op_size, group))
        if pending and size + more > MAX_COMMIT:
            yield pending
            pending, size = [], 0
        pending.extend(group)
        size += more
    if pending:
        yield pending


def outcome(op: Op, found: Entry | None) -> Entry | None:
    """Apply `op` to `found`, the entry at its path; return the resulting entry, or raise `ConflictError`."""
    version = ABSENT if found is None else found.version
    expect = op.expect
    if expect is not None and expect != version:
        raise ConflictError(
            f"ledger path {op.path!r}: expected {_worded(expect)}, got {_worded(version)}; "
            "another process wrote it: read again and decide again"
        )
    if isinstance(op, Put):
        return Entry(op.value, version + 1)
    return found if isinstance(op, Check) else None


def _worded(version: int) -> str:
    return "no entry" if version == ABSENT else f"version {version}"


def changes_of(ops: Sequence[Op], entries: Mapping[str, Entry]) -> dict[str, Entry | None]:
    """Return path → new entry, None if deleted, for the changes of `ops` to `entries`; see `outcome` for errors."""
    changed: dict[str, Entry | None] = {}
    for op in ops:
        found = changed[op.path] if op.path in changed else entries.get(op.path)
        after = outcome(op, found)
        if after is not found:
            changed[op.path] = after
    return changed


def replace(entries: dict[str, T], changed: Mapping[str, T | None]) -> None:
    """Put what `changed` has for each path into `entries`; None: remove it."""
    for path, entry in changed.items():
        if entry is None:
            entries.pop(path, None)
        else:
            entries[path] = entry


_DELETED = {names.META: "ledger.meta", names.INTENTS: "ledger.intent"}


def pass_deleted(ops: Iterable[Op]) -> None:
    """Pass the fault point of each deletion among `ops`, if entries of its kind have one."""
    for op in ops:
        if isinstance(op, Delete) and (point := _DELETED.get(op.path.rpartition("/")[0])):
            faults.point(point)


def child_names(path: str, stored: Iterable[str]) -> list[str]:
    """Return the names directly below `path` among the `stored` paths, in the order of `Ledger.children`."""
    prefix = f"{path}/" if path else ""
    names = {other[len(prefix) :].split("/", 1)[0] for other in stored if other.startswith(prefix)}
    return sorted(names, key=name_order)


def name_order(name: str) -> tuple[bool, int, str]:
    """Return the sort key of `name`: whole numbers come first, in numeric order, then all other names."""
    number = name.isascii() and name.isdecimal()
    return (not number, int(name) if number else 0, name)
