"""Registry in ZooKeeper: the negotiator's state and the processors of a run, as nodes that watchers can follow."""

from __future__ import annotations

import json
import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from txstorm.clients.zookeeper.operations import AnswerLost, Change, Create, Node, NodeOp, Remove, SessionOver, Verify
from txstorm.errors import DataDirectoryError, TxstormError
from txstorm.lanes import Lanes
from txstorm.ledger.location import LedgerSpec
from txstorm.ledger.paths import REGISTRY
from txstorm.ledger.port import Check
from txstorm.ledger.zookeeper.location import checked_chroot, checked_hosts
from txstorm.ledger.zookeeper.nodes import DIRECTORY, entry_name, node_name, node_path
from txstorm.topology.settings import Settings

if TYPE_CHECKING:
    from txstorm.clients.zookeeper.session import ZooKeeperSession

log = logging.getLogger(__name__)
FORMAT = 1
MASTER, LIVING = "master_state", "living_processors"
RENEWAL = 0.1
"""Seconds between two renewals of entries at least."""
RETRY = 1.0
"""Seconds between two attempts after a failure."""
ENDING = 2.0
"""Seconds that the end of a run waits for the nodes to be removed; those that are left go with the session."""
TRIES = 20
LONGEST = 200_000
"""Bytes of the data in one ZooKeeper transaction, more than which only a single node has."""
Nodes = Mapping[str, bytes | None]
"""Path → the data that the node is to have; None: it is to be removed."""


def registry_root(chroot: str, topology: str) -> str:
    """Return the node below which the registry of `topology` is; `chroot` may be empty."""
    above = checked_chroot(chroot) if chroot.strip("/") else ""
    return f"{above}/{REGISTRY}/{node_name(topology)}"


def connect(hosts: str, settings: Settings | None = None) -> ZooKeeperSession:
    """Open a session, with the options of a ledger in ZooKeeper; raise its errors."""
    from txstorm.clients.zookeeper.session import ZooKeeperSession
    from txstorm.ledger.zookeeper.open import zookeeper_options

    settings = settings or Settings()
    return ZooKeeperSession(checked_hosts(hosts, settings.zookeeper_port), zookeeper_options(settings, os.environ))


def read_registry(hosts: str, chroot: str, topology: str, settings: Settings | None = None) -> dict[str, Any]:
    """Return what the registry of `topology` shows: ``master_state`` (None: no run) and ``living_processors`` by name.

    Raises:
        InputError: `hosts` or `chroot` is malformed, or the credentials do not grant access.
        DataDirectoryError: a node was not written by txstorm, or by a newer one.
        TxstormError: no server responded in time.
    """
    root = registry_root(chroot, topology)
    with closing(connect(hosts, settings)) as zookeeper:
        zookeeper.sync(root)
        names = sorted((zookeeper.children(f"{root}/{LIVING}") or ([],))[0])
        paths = [f"{root}/{MASTER}", *(f"{root}/{LIVING}/{name}" for name in names)]
        master, *entries = map(_decoded, paths, zookeeper.read(paths))
    living = {entry_name(name): entry for name, entry in zip(names, entries, strict=True) if entry is not None}
    return {"master_state": master, "living_processors": living}


def init_registry(hosts: str, chroot: str, topology: str, settings: Settings | None = None) -> None:
    """Create the nodes below which a run of `topology` has its registry, and an empty ledger at `chroot`, if missing.

    Raises the errors of `txstorm.ledger.zookeeper.open.open_zookeeper`.
    """
    from txstorm.ledger.zookeeper.open import check_access, open_zookeeper

    settings, root = settings or Settings(), registry_root(chroot, topology)
    if chroot.strip("/"):  # a run finds no node here that is no ledger
        open_zookeeper(hosts, chroot, settings, create=True).close()
    with closing(connect(hosts, settings)) as zookeeper:
        check_access(zookeeper, root, settings, create=True)
        _make_parents(zookeeper, root)


def _decoded(path: str, node: Node | None) -> Any:
    if node is None:
        return None
    try:
        found = json.loads(node.data)
        newer = found["format"] > FORMAT
    except (ValueError, TypeError, KeyError) as error:
        msg = f"ZooKeeper node {path}: expected what a run of a Hailstorm topology writes, got {node}; remove the node"
        raise DataDirectoryError(msg) from error
    if newer:
        msg = f"ZooKeeper node {path}: expected format {FORMAT}, got {found['format']}; use the txstorm that wrote it"
        raise DataDirectoryError(msg)
    return found


def _make_parents(zookeeper: ZooKeeperSession, root: str) -> None:
    names = f"{root}/{LIVING}".split("/")
    paths = ["/".join(names[:end]) for end in range(2, len(names) + 1)]
    for _ in range(TRIES):
        missing = [path for path, node in zip(paths, zookeeper.read(paths), strict=True) if node is None]
        try:
            if not missing or zookeeper.transact([Create(path, DIRECTORY) for path in missing]) is None:
                return
        except AnswerLost:
            pass  # the next read shows whether it happened
        zookeeper.sync(root)
    msg = f"ZooKeeper {zookeeper.hosts}: expected to create {paths[-1]}, got {TRIES} refusals; see what writes there"
    raise TxstormError(msg)


@dataclass(frozen=True)
class _Change:
    nodes: Nodes
    merges: bool


class Registry:
    """The nodes of one run, written behind it on a lane of their own. Not thread-safe.

    A failure is logged, and retried; it never reaches the run. The nodes are ephemeral: they go with the run's session,
    and are created again if the servers end it. No write of a run that was taken over is carried out.

    Args:
        open_session: opens the ZooKeeper session that owns the nodes.
        root: the result of `registry_root`.
        guard: what the servers verify at each write.
        lanes: run the writes, and give the time.
    """

    def __init__(
        self, open_session: Callable[[], ZooKeeperSession], root: str, guard: Sequence[NodeOp], lanes: Lanes
    ) -> None:
        self._open, self._root, self._guard, self._lanes = open_session, root, guard, lanes
        self._lane = lanes.lane("txstorm-registry")
        self._lock = lanes.lock()
        self._changes: deque[_Change] = deque()
        self._entries: dict[str, bytes] = {}
        self._renew_at = self._retry_at = 0.0
        self._over = False
        self._zookeeper: ZooKeeperSession | None = None
        # What only the lane uses: the nodes that are to be there, and those that are.
        self._written: dict[str, bytes] = {}
        self._known: dict[str, Node] = {}
        self._session: int | None = None
        self._failed = ""

    @classmethod
    def of(cls, spec: LedgerSpec, topology: str, guard: Iterable[Check], settings: Settings, lanes: Lanes) -> Registry:
        """Build the registry of a run whose ledger is in ZooKeeper, given the checks of each of its commits."""
        verified = [Verify(node_path(checked_chroot(spec.chroot), one.path), one.expect) for one in guard]
        return cls(lambda: connect(spec.hosts, settings), registry_root(spec.chroot, topology), verified, lanes)

    def show(self, master: Mapping[str, Any]) -> None:
        """Write the negotiator's state; each one is written, in order."""
        self._add({f"{self._root}/{MASTER}": _encoded(master)})

    def register(self, entries: Mapping[str, Mapping[str, Any]]) -> None:
        """Write the entries of all processors at once, given by name; those of others are removed."""
        before, self._entries = self._entries, self._nodes(entries)
        self._add({**dict.fromkeys(before), **self._entries})

    def renew(self, entries: Callable[[], Mapping[str, Mapping[str, Any]]]) -> None:
        """Write the entries that have changed, if a renewal is due; retry what has failed. Call often.

        Args:
            entries: returns the entries of the registered processors; called only if a renewal is due.
        """
        now = self._lanes.monotonic()
        if self._entries and now >= self._renew_at:
            self._renew_at = now + RENEWAL
            given = self._nodes(entries())
            if changed := {path: data for path, data in given.items() if self._entries.get(path) != data}:
                self._entries = given
                self._add(changed, merges=True)
        zookeeper = self._zookeeper
        lost = zookeeper is not None and zookeeper.session not in (None, self._session)
        if (lost or self._failed) and now >= self._retry_at:
            self._retry_at = now + RETRY
            self._lane.queue(self._work)

    def close(self) -> None:
        """Remove all nodes; wait for that for `ENDING` seconds at most."""
        self._lane.queue(self._end)
        self._lane.end()
        if not self._lane.join(ENDING):
            self._over = True
            if self._zookeeper is not None:
                self._zookeeper.close()

    def _nodes(self, entries: Mapping[str, Mapping[str, Any]]) -> dict[str, bytes]:
        return {f"{self._root}/{LIVING}/{node_name(name)}": _encoded(entry) for name, entry in entries.items()}

    def _add(self, nodes: Nodes, *, merges: bool = False) -> None:
        with self._lock:
            if merges and self._changes and self._changes[-1].merges:
                nodes = {**self._changes.pop().nodes, **nodes}
            self._changes.append(_Change(nodes, merges))
        self._lane.queue(self._work)

    # -- on the lane --------------------------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            if self._zookeeper is None and not self._over:
                self._zookeeper = self._open()
            while not self._over and self._carry_out_next():
                pass
        except Exception as error:  # noqa: BLE001 - whatever happens here, the run goes on
            if not self._failed and not self._over:
                log.warning("the nodes below %s are not up to date; the run goes on: %s", self._root, error)
            self._failed = str(error) or type(error).__name__
        else:
            self._failed = ""

    def _carry_out_next(self) -> bool:
        """Carry out the next change; return False if there was none, and all nodes are there."""
        with self._lock:
            change = self._changes.popleft() if self._changes else _Change({}, merges=False)
        try:
            self._carry_out(change.nodes)
        except BaseException:
            with self._lock:
                self._changes.appendleft(change)
            raise
        with self._lock:
            return bool(self._changes)

    def _carry_out(self, nodes: Nodes) -> None:
        assert self._zookeeper is not None
        zookeeper = self._zookeeper
        wanted = {path: data for path, data in {**self._written, **nodes}.items() if data is not None}
        for _ in range(TRIES):
            try:
                if self._session is None or zookeeper.current() != self._session:
                    self._read(zookeeper)
                if self._over or self._written_all(zookeeper, wanted):
                    self._written = wanted
                    return
            except (AnswerLost, SessionOver):
                pass
            self._session = None
        raise TxstormError(f"ZooKeeper {zookeeper.hosts}: expected to write below {self._root}, got {TRIES} refusals")

    def _read(self, zookeeper: ZooKeeperSession) -> None:
        """Read which nodes there are, also those of a run that has ended and whose session has not."""
        session = zookeeper.current()
        zookeeper.sync(self._root)
        _make_parents(zookeeper, self._root)
        names, _ = zookeeper.children(f"{self._root}/{LIVING}") or ([], (0, 0))
        paths = [f"{self._root}/{MASTER}", *(f"{self._root}/{LIVING}/{name}" for name in names)]
        found = zip(paths, zookeeper.read(paths, session), strict=True)
        self._known, self._session = {path: node for path, node in found if node is not None}, session

    def _written_all(self, zookeeper: ZooKeeperSession, wanted: Mapping[str, bytes]) -> bool:
        """Make the nodes as `wanted`; return False if others have changed them meanwhile."""
        assert self._session is not None
        session, known = self._session, self._known
        gone = [path for path, node in known.items() if path not in wanted or node.owner != session]
        ops: list[NodeOp] = [Remove(path, known[path].version) for path in gone]
        for path, data in wanted.items():
            if path not in known or path in gone:
                ops.append(Create(path, data, ephemeral=True))
            elif known[path].data != data:
                ops.append(Change(path, data, known[path].version))
        for part in _parts(ops):
            refusal = zookeeper.transact([*self._guard, *part], session)
            if refusal is not None and refusal.index < len(self._guard):
                self._over = True
                log.info("the nodes below %s belong to a run that has taken over", self._root)
                return True
            if refusal is not None:
                return False
            for op in part:
                self._note(op)
        return True

    def _note(self, op: NodeOp) -> None:
        assert self._session is not None
        match op:
            case Remove(path):
                del self._known[path]
            case Create(path, data):
                self._known[path] = Node(data, 0, 0, 0, self._session)
            case Change(path, data, version):
                self._known[path] = Node(data, version + 1, 0, 0, self._session)

    def _end(self) -> None:
        self._over = True
        if self._zookeeper is not None:
            self._zookeeper.close()


def _encoded(value: Mapping[str, Any]) -> bytes:
    return json.dumps({"format": FORMAT, **value}).encode()


def _parts(ops: Sequence[NodeOp]) -> Iterable[list[NodeOp]]:
    """Divide `ops` into transactions of at most `LONGEST` bytes."""
    part: list[NodeOp] = []
    size = 0
    for op in ops:
        length = len(op.path) + len(getattr(op, "data", b"")) + 40
        if part and size + length > LONGEST:
            yield part
            part, size = [], 0
        part.append(op)
        size += length
    if part:
        yield part
