"""Layout of a ledger in ZooKeeper's nodes, and translation of a commit into one transaction, as pure functions.

An entry is the node at its path. Nodes that exist only as parents hold `DIRECTORY` and are never removed. An
entry at the path of such a directory is the node `VALUE` below it, so that the version of an entry is always the
version of its node.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote, unquote

from txstorm.clients.zookeeper.operations import Change, Create, Node, NodeOp, Remove, Verify
from txstorm.ledger.port import ABSENT, Check, Delete, Entry, Op, Put, outcome

DIRECTORY = b"/"
"""The data of a directory, which is not an entry. A value that begins with these bytes gets them prepended."""

# No entry name is escaped to one of these: in escaped names two hexadecimal digits follow every percent sign.
VALUE = "%value"
LEASE = "%lease"
EPOCH = "%epoch"
WRITERS = "%writers"

# Characters that ZooKeeper accepts in no path, or would read as a pair of surrogates, and the escape character itself.
_FORBIDDEN = re.compile("[%\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\U0010ffff]")


def node_name(name: str) -> str:
    """Escape `name` for ZooKeeper; nearly every name stays unchanged."""
    return _FORBIDDEN.sub(lambda found: quote(found[0], safe=""), name)


def entry_name(node: str) -> str | None:
    """Unescape the result of `node_name`; None for an internal node of the ledger."""
    name = unquote(node)
    return name if node_name(name) == node else None


def node_path(root: str, path: str) -> str:
    """Return the path of the node for the ledger path `path`, which may be empty, in the ledger at `root`."""
    return "/".join([root, *map(node_name, path.split("/"))]) if path else root


def node_data(value: bytes) -> bytes:
    """Return the data of a node that stores the `value` of an entry."""
    return DIRECTORY + value if value.startswith(DIRECTORY) else value


def entry_of(node: Node | None) -> Entry | None:
    """Return the entry in `node`; None for a directory or a missing node."""
    if node is None or node.data == DIRECTORY:
        return None
    return Entry(node.data.removeprefix(DIRECTORY), node.version)


@dataclass(frozen=True)
class Known:
    """A handle's cached state of a node.

    Attributes:
        version: the version of its data.
        directory: whether it is a directory, which it then remains.
        children: whether there may be nodes below it.
    """

    version: int
    directory: bool
    children: bool


def known_of(node: Node | None) -> Known | None:
    """Convert a node just read to the cached form that a commit uses; None for a missing node."""
    return None if node is None else Known(node.version, node.data == DIRECTORY, node.children > 0)


def needed(root: str, op: Op, known: Mapping[str, Known | None], *, guess: bool) -> Iterator[str]:
    """Yield the nodes, besides those in `known`, that must be read before `op` can be drafted.

    With `guess`, a put assumes that an unknown node is absent: creating it is refused if it exists.
    """
    above, node = _above(root, op.path), node_path(root, op.path)
    yield from (path for path in above if path not in known)
    if node in known:
        yield from (path for path in [f"{node}/{VALUE}"] if _is_directory(known[node]) and path not in known)
    elif not (guess and isinstance(op, Put) and op.expect in (None, ABSENT)):
        yield node


def touched(root: str, op: Op) -> list[str]:
    """Return all nodes whose state can affect the outcome of `op`."""
    node = node_path(root, op.path)
    return [*_above(root, op.path), node, f"{node}/{VALUE}"]


def draft(
    root: str, ops: Sequence[Op], known: Mapping[str, Known | None]
) -> tuple[list[NodeOp], dict[str, Known | None]]:
    """Draft the transaction for `ops`, assuming the nodes are as `known`; return it with the resulting node states.

    Every operation names the version it expects, so that the server refuses the whole transaction if a node differs.

    Raises:
        ConflictError: according to `known`, an entry is not at the expected version.
    """
    transaction = _Draft(root, known)
    for op in ops:
        transaction.add(op)
    return transaction.ops, transaction.after


class _Draft:
    def __init__(self, root: str, known: Mapping[str, Known | None]) -> None:
        self._root = root
        self._known = known
        self.ops: list[NodeOp] = []
        self.after: dict[str, Known | None] = {}

    def add(self, op: Op) -> None:
        node = self._place(op.path)
        found = self._look(node)
        outcome(op, None if found is None else Entry(b"", found.version))
        match op:
            case Put():
                self._put(op, node, found)
            case _ if found is None:
                self._must_be_absent(op.path, node)
            case Delete():
                self._delete(node, found)
            case Check():
                self.ops.append(Verify(node, found.version))

    def _place(self, path: str) -> str:
        node = node_path(self._root, path)
        return f"{node}/{VALUE}" if _is_directory(self._look(node)) else node

    def _look(self, node: str) -> Known | None:
        return self.after[node] if node in self.after else self._known.get(node)

    def _put(self, op: Put, node: str, found: Known | None) -> None:
        if found is not None:
            self._change(node, node_data(op.value), found, directory=False)
            return
        for above in self._missing(op.path):
            self._create(above, DIRECTORY)
        self._create(node, node_data(op.value))

    def _create(self, node: str, data: bytes) -> None:
        self.ops.append(Create(node, data))
        self.after[node] = Known(0, data == DIRECTORY, children=False)
        parent = node.rpartition("/")[0]
        above = self._look(parent)
        if above is not None:
            self.after[parent] = Known(above.version, above.directory, children=True)

    def _change(self, node: str, data: bytes, found: Known, *, directory: bool) -> None:
        self.ops.append(Change(node, data, found.version))
        self.after[node] = Known(found.version + 1, directory, found.children)

    def _delete(self, node: str, found: Known) -> None:
        if found.children:
            self._change(node, DIRECTORY, found, directory=True)
            return
        self.ops.append(Remove(node, found.version))
        self.after[node] = None

    def _must_be_absent(self, path: str, node: str) -> None:
        """Verify that a node is absent by creating and removing it: ZooKeeper has no check for absence."""
        top = next(iter([*self._missing(path), node]))
        self.ops += [Create(top, DIRECTORY), Remove(top, 0)]

    def _missing(self, path: str) -> list[str]:
        return [above for above in _above(self._root, path) if self._look(above) is None]


def _above(root: str, path: str) -> list[str]:
    """Return the nodes between `root` and the node of `path`, from the top down."""
    names = path.split("/")
    return [node_path(root, "/".join(names[:depth])) for depth in range(1, len(names))]


def _is_directory(found: Known | None) -> bool:
    return found is not None and found.directory
