"""Session with a ZooKeeper ensemble, with the operations that the ledger needs. Only this module imports `kazoo`."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from txstorm.clients.zookeeper.operations import (
    AnswerLost,
    Change,
    Create,
    Node,
    NodeOp,
    Refusal,
    Remove,
    SessionOver,
    Unreachable,
    Verify,
    ZooKeeperOptions,
)
from txstorm.errors import InputError, MissingDependency, TxstormError
from txstorm.lanes import start_thread

try:
    from kazoo import exceptions as errors
    from kazoo.client import KazooClient, KazooState
    from kazoo.handlers.threading import KazooTimeoutError
    from kazoo.security import CREATOR_ALL_ACL, Permissions
except ModuleNotFoundError:
    raise MissingDependency("kazoo", "zookeeper") from None

_log = logging.getLogger(__name__)
# Errors of a request whose connection broke: it is unknown whether the server has carried it out.
_AWAY = (
    errors.ConnectionLoss,
    errors.SessionExpiredError,
    errors.SessionMovedError,
    errors.OperationTimeoutError,
    errors.RequestTimeoutError,
    KazooTimeoutError,
)
# Frequent attempts after the first failure, so that a server that is up again is found within half a second.
_RECONNECT = {"max_tries": -1, "delay": 0.05, "backoff": 2, "max_delay": 0.5}
STOPPING = 2.0
"""Seconds that `close` waits for the server's response; without a response, the session ends by its timeout."""


_REASONS: dict[type[Exception], str] = {
    errors.NodeExistsError: "exists",
    errors.NoNodeError: "absent",
    errors.BadVersionError: "version",
    errors.NotEmptyError: "children",
}
# Results of the other operations of a refused transaction.
_BESIDE = (errors.RolledBackError, errors.RuntimeInconsistency)


class ZooKeeperSession:
    """ZooKeeper session whose connection is restored automatically. Thread-safe.

    When the servers end the session, it is replaced with a new one. A call that must be made in a particular session
    passes the id of that session, an earlier value of the property `session`.

    Raises:
        Unreachable: none of `hosts` responded within ``options.connect_timeout``; the message gives the last cause.
        InputError: the servers refused the credentials.
    """

    def __init__(self, hosts: str, options: ZooKeeperOptions) -> None:
        self.hosts = hosts
        self.options = options
        self._changed = threading.Condition()
        self._session: int | None = None
        self._connected = self._closed = False
        self._causes = _Causes(self._notify)
        self._kazoo = _client(hosts, options, self._causes)
        self._kazoo.add_listener(self._follow)
        self._start()

    @property
    def session(self) -> int | None:
        """The id of the current session; None if it has ended and there is no new one yet."""
        return self._session

    @property
    def connected(self) -> bool:
        """Whether the connection is established, as far as this client knows."""
        return self._connected

    def current(self) -> int:
        """Block until there is a connection; return the session's id.

        Raises `Unreachable` if there is no connection within ``options.patience`` seconds.
        """
        self._await(time.monotonic() + self.options.patience)
        session = self._session
        if session is None:
            raise self._unreachable()
        return session

    def read(self, paths: Sequence[str], session: int | None = None) -> list[Node | None]:
        """Read the nodes at `paths` with pipelined requests, in order; None for a missing node."""
        return [_node(found) for found in self._ask(self._kazoo.get_async, paths, session)]

    def stamps(self, paths: Sequence[str]) -> list[tuple[int, int] | None]:
        """Return, for each path, the zxids of the last changes of data and children; None for a missing node."""
        return [None if stat is None else _stamp(stat) for stat in self._ask(self._kazoo.exists_async, paths)]

    def children(self, path: str) -> tuple[list[str], tuple[int, int]] | None:
        """Read the names of the children of `path`, and its zxids as in `stamps`, atomically; None if it is missing."""
        found = self._ask(lambda node: self._kazoo.get_children_async(node, include_data=True), [path])[0]
        return None if found is None else (found[0], _stamp(found[1]))

    def is_open(self, path: str) -> bool:
        """Return whether any client may change the node at `path` or its children; False for a missing node."""
        found = self._ask(self._kazoo.get_acls_async, [path])[0]
        return found is not None and any(acl.id.scheme == "world" and acl.perms & ~Permissions.READ for acl in found[0])

    def sync(self, path: str) -> None:
        """Make the connected server catch up with everything that was committed before this call."""
        self._ask(self._kazoo.sync_async, [path])

    def absent(self, path: str, watch: Callable[[object], None], wait: float) -> bool:
        """Return whether there is no node at `path`, and set `watch`, which is called when that may have changed.

        Raises:
            Unreachable: there was no connection within `wait` seconds.
        """
        ask = self._kazoo.exists_async
        return self._ask(lambda node: ask(node, watch=watch), [path], wait=wait)[0] is None

    def transact(self, ops: Sequence[NodeOp], session: int | None = None) -> Refusal | None:
        """Carry out `ops` in order and atomically; return None on success, otherwise the refusal.

        Raises:
            AnswerLost: the connection broke; it is unknown whether the operations were carried out.
            SessionOver: `session` was given and has ended; nothing was sent.
        """
        self._await(time.monotonic() + self.options.patience, session)
        request = self._kazoo.transaction()
        for op in ops:
            _add(request, op)
        with self._translated():
            try:
                return _refusal(self._answer(request.commit_async()))
            except _AWAY as error:
                msg = f"ZooKeeper {self.hosts}: expected the answer of a transaction, got {type(error).__name__}"
                raise AnswerLost(msg) from error

    def close(self) -> None:
        """End the session, which deletes its ephemeral nodes; idempotent."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        # In a separate thread: a server that hangs must not block the caller.
        start_thread(_stop, self._kazoo).join(STOPPING)

    def _start(self) -> None:
        self._kazoo.start_async()
        try:
            self._await(time.monotonic() + self.options.connect_timeout)
        except Unreachable:
            self.close()
            raise

    def _follow(self, state: str) -> None:
        """Handle a change of the connection's state; called on kazoo's own thread."""
        with self._changed:
            self._connected = state == KazooState.CONNECTED
            if self._connected:
                self._session = self._kazoo.client_id[0]
                self._causes.distrusted = 0
            elif state == KazooState.LOST:
                self._session = None
            self._changed.notify_all()

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _await(self, until: float, session: int | None = None) -> None:
        """Block until there is a connection; raise an error if `session` ends, or at the monotonic time `until`."""

        def settled() -> bool:
            # Waiting is futile if no server has a trusted certificate, or the credentials were refused.
            distrusted = self._session is None and self._causes.distrusted > self.hosts.count(",")
            return self._connected or self._closed or self._over(session) or distrusted or self._refused()

        with self._changed:
            self._changed.wait_for(settled, max(0.0, until - time.monotonic()))
            connected = self._connected
        if self._closed:
            raise TxstormError(f"ZooKeeper {self.hosts}: expected an open session, got a closed one; open it again")
        if self._over(session):
            raise SessionOver(f"ZooKeeper {self.hosts}: the session {session:#x} has ended")
        if not connected:
            raise self._unreachable()

    def _over(self, session: int | None) -> bool:
        return session is not None and self._session != session

    def _refused(self) -> bool:
        return bool(self._kazoo.client_state == "AUTH_FAILED")

    def _unreachable(self) -> TxstormError:
        if self._refused():
            return self._no_access()
        return Unreachable(
            f"ZooKeeper {self.hosts}: expected an answer, got none: {self._causes.last}; "
            "check hosts and port, that the servers run, and TLS where they ask for it"
        )

    def _no_access(self) -> InputError:
        user = self.options.auth.partition(":")[0]
        who = f"user {user!r} with the given password" if user else "a client without credentials"
        return InputError(
            f"ZooKeeper {self.hosts}: expected access, got a refusal for {who}; "
            "set TXSTORM_ZOOKEEPER_AUTH to the user:password that made the nodes"
        )

    def _ask(
        self, send: Callable[[str], Any], paths: Sequence[str], session: int | None = None, wait: float | None = None
    ) -> list[Any]:
        """Send one request per path, pipelined, and return the responses; retry all if the connection breaks."""
        until = time.monotonic() + (self.options.patience if wait is None else wait)
        while True:
            self._await(until, session)
            with self._translated():
                try:
                    return [self._found(request) for request in [send(path) for path in paths]]
                except _AWAY as error:
                    if time.monotonic() > until:
                        raise self._unreachable() from error

    def _found(self, request: Any) -> Any:
        try:
            return self._answer(request)
        except errors.NoNodeError:
            return None

    def _answer(self, request: Any) -> Any:
        return request.get(timeout=self.options.patience)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (errors.NoAuthError, errors.AuthFailedError) as error:
            raise self._no_access() from error
        except errors.KazooException as error:
            msg = f"ZooKeeper {self.hosts}: expected it to serve a request, got {type(error).__name__} {error}"
            raise TxstormError(msg) from error


class _Causes(logging.Handler):
    """Log handler that records kazoo's messages about failed connections; kazoo reports causes only in its log."""

    def __init__(self, notify: Callable[[], None]) -> None:
        super().__init__(logging.WARNING)
        self.last = "no connection within the time there was"
        self.distrusted = 0
        self._notify = notify

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if message.startswith(("Connection", "Cannot resolve", "Session")):
            self.last = message
        if "CERTIFICATE_VERIFY_FAILED" in message:
            self.distrusted += 1
            self._notify()
        _log.debug(message)


def _client(hosts: str, options: ZooKeeperOptions, causes: logging.Handler) -> Any:
    # Not one of the process's loggers: an unreachable server would print a line on the terminal every half second.
    logger = logging.Logger("kazoo", logging.WARNING)
    logger.addHandler(causes)
    return KazooClient(
        hosts=hosts,
        timeout=options.session_timeout,
        connection_retry=_RECONNECT,
        auth_data=[("digest", options.auth)] if options.auth else None,
        default_acl=CREATOR_ALL_ACL if options.auth else None,
        use_ssl=options.tls,
        ca=options.ca or None,
        certfile=options.certificate or None,
        keyfile=options.key or None,
        keyfile_password=options.key_password or None,
        check_hostname=options.tls and options.check_hostname,
        logger=logger,
    )


def _stop(client: Any) -> None:
    try:
        client.stop()
        client.close()
    except Exception as error:  # noqa: BLE001 - nothing can be done about any error of a client that is closed
        _log.debug("closing: %s", error)


def _node(found: tuple[bytes, Any] | None) -> Node | None:
    if found is None:
        return None
    data, stat = found
    return Node(data, stat.version, stat.mzxid, stat.numChildren, stat.ephemeralOwner)


def _stamp(stat: Any) -> tuple[int, int]:
    return stat.mzxid, stat.pzxid


def _add(request: Any, op: NodeOp) -> None:
    match op:
        case Create(path, data, ephemeral):
            request.create(path, data, ephemeral=ephemeral)
        case Change(path, data, version):
            request.set_data(path, data, version)
        case Remove(path, version):
            request.delete(path, version)
        case Verify(path, version):
            request.check(path, version)


def _refusal(results: Sequence[Any]) -> Refusal | None:
    for index, result in enumerate(results):
        if isinstance(result, Exception) and not isinstance(result, _BESIDE):
            if type(result) not in _REASONS:
                raise result
            return Refusal(index, _REASONS[type(result)])
    return None
