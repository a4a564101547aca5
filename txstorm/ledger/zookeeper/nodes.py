"""How a ledger is laid out in ZooKeeper's nodes, and a commit as one transaction of theirs. Pure functions.

An entry is the node of its path. Nodes that are there for those below them hold `DIRECTORY`, and are kept for good. An
entry at the path of such a node is the node `VALUE` below it, so that the version of a node is the version of its
entry everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote, unquote

from txstorm.clients.zookeeper.values import Change, Create, Node, NodeOp, Remove, Verify
from txstorm.ledger.port import ABSENT, Check, Delete, Entry, Op, Put, outcome

DIRECTORY = b"/"
"""The data of a node that is no entry. Values that begin so are stored with one more in front."""

# No name of an entry becomes one of these: in an escaped name two hexadecimal digits follow every percent sign.
VALUE = "%value"
LEASE = "%lease"
EPOCH = "%epoch"
WRITERS = "%writers"

# What ZooKeeper takes in no path, and what it would see as a pair of surrogates; and our own sign.
_FORBIDDEN = re.compile("[%\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\U0010ffff]")


def node_name(name: str) -> str:
    """`name` as ZooKeeper takes it; nearly every name is taken as it is."""
    return _FORBIDDEN.sub(lambda found: quote(found[0], safe=""), name)


def entry_name(node: str) -> str | None:
    """The name that `node_name` made `node` of; None for a node of the ledger's own."""
    name = unquote(node)
    return name if node_name(name) == node else None


def node_path(root: str, path: str) -> str:
    """The node of the ledger path `path`, which may be empty, in the ledger at `root`."""
    return "/".join([root, *map(node_name, path.split("/"))]) if path else root


def node_data(value: bytes) -> bytes:
    """What is stored for the value of an entry."""
    return DIRECTORY + value if value.startswith(DIRECTORY) else value


def entry_of(node: Node | None) -> Entry | None:
    """The entry that `node` is; None for a directory."""
    if node is None or node.data == DIRECTORY:
        return None
    return Entry(node.data.removeprefix(DIRECTORY), node.version)


@dataclass(frozen=True)
class Known:
    """What is known of a node.

    Attributes:
        directory: whether it is no entry; once it is, it stays so.
        children: whether there may be nodes below it.
    """

    version: int
    directory: bool
    children: bool


def known_of(node: Node | None) -> Known | None:
    """What a commit has to know of a node that was read."""
    return None if node is None else Known(node.version, node.data == DIRECTORY, node.children > 0)


def needed(root: str, op: Op, known: Mapping[str, Known | None], *, guess: bool) -> Iterator[str]:
    """The nodes that must be read before `op` can be drafted, with `known` at hand.

    With `guess` a put takes a node it knows nothing of for absent: creating is refused wherever there is one.
    """
    above, node = _above(root, op.path), node_path(root, op.path)
    yield from (path for path in above if path not in known)
    if node in known:
        yield from (path for path in [f"{node}/{VALUE}"] if _is_directory(known[node]) and path not in known)
    elif not (guess and isinstance(op, Put) and op.expect in (None, ABSENT)):
        yield node


def touched(root: str, op: Op) -> list[str]:
    """All nodes whose state decides what `op` does."""
    node = node_path(root, op.path)
    return [*_above(root, op.path), node, f"{node}/{VALUE}"]


def draft(
    root: str, ops: Sequence[Op], known: Mapping[str, Known | None]
) -> tuple[list[NodeOp], dict[str, Known | None]]:
    """The transaction that carries out `ops` where the nodes are as `known`, and what is known after it.

    Every operation names the version it found, so that the server refuses all when anything was otherwise.

    Raises:
        ConflictError: an entry is not at the expected version, by what is known.
    """
    made = _Draft(root, known)
    for op in ops:
        made.add(op)
    return made.ops, made.after


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
        """A node that is made and removed again was not there: ZooKeeper has no check for that."""
        top = next(iter([*self._missing(path), node]))
        self.ops += [Create(top, DIRECTORY), Remove(top, 0)]

    def _missing(self, path: str) -> list[str]:
        return [above for above in _above(self._root, path) if self._look(above) is None]


def _above(root: str, path: str) -> list[str]:
    """The nodes between the root and that of `path`."""
    names = path.split("/")
    return [node_path(root, "/".join(names[:depth])) for depth in range(1, len(names))]


def _is_directory(found: Known | None) -> bool:
    return found is not None and found.directory
