"""Connection to a Redis server, and its errors. This is the only module that imports `redis`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

from txstorm.errors import InputError, MissingDependency
from txstorm.masks import masked_url

try:
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry
except ModuleNotFoundError:
    raise MissingDependency("redis", "redis") from None

URL = "redis://[USER:PASSWORD@]HOST[:PORT][/DATABASE]"


@dataclass(frozen=True)
class RedisAddress:
    """Address of a Redis server, with the credentials for it.

    Attributes:
        host, port, database: the server, and the number of the database in it.
        timeout: seconds to connect, and to wait for an answer.
        username, password: credentials, if the server needs them.
        ssl: whether to speak TLS.
    """

    host: str = "localhost"
    port: int = 6379
    database: int = 0
    timeout: float = 2.0
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    ssl: bool = False

    def __str__(self) -> str:
        return f"redis{'s' if self.ssl else ''}://{self.host}:{self.port}/{self.database}"


def address_of(url: str, timeout: float) -> RedisAddress:
    """Return the address in a URL; raise `InputError`, which shows no password, if it is wrong."""
    try:
        parts = urlsplit(url)
        host, port, database = parts.hostname, parts.port or 6379, parts.path.strip("/")
        fine = parts.scheme in ("redis", "rediss") and host and not parts.query and not parts.fragment
        if fine and (not database or database.isdecimal()) and timeout > 0:
            return RedisAddress(
                host=host or "",
                port=port,
                database=int(database or 0),
                timeout=timeout,
                username=unquote(parts.username) if parts.username else None,
                password=unquote(parts.password) if parts.password else None,
                ssl=parts.scheme == "rediss",
            )
    except (ValueError, TypeError, AttributeError):
        pass
    shown = masked_url(url) if isinstance(url, str) else type(url).__name__
    raise InputError(f"Redis: URL {shown!r}, timeout {timeout!r}: expected {URL} (rediss: TLS), and a timeout above 0")


def connect(address: RedisAddress) -> Any:
    """Return a client; a call whose response is lost is not repeated: the caller first reads what it has done."""
    return redis.Redis(
        host=address.host,
        port=address.port,
        db=address.database,
        username=address.username,
        password=address.password,
        ssl=address.ssl,
        socket_timeout=address.timeout,
        socket_connect_timeout=address.timeout,
        retry=Retry(NoBackoff(), 0),
    )


def connection_of(client: Any) -> Any:
    """Return a new connection for `pipelined`, which connects when it is used."""
    return client.connection_pool.make_connection()


def pipelined(connection: Any, packed: bytes, count: int) -> list[Any]:
    """Send `count` commands that are packed already; return their answers. Half the time of the client's pipelines."""
    try:
        connection.can_read(0)
    except redis.ConnectionError:  # the server has closed it since the last call
        connection.disconnect()
    try:
        connection.send_packed_command([packed])
        return [connection.read_response() for _ in range(count)]
    except BaseException:
        connection.disconnect()  # answers may be unread
        raise


NoScriptError, ResponseError = redis.exceptions.NoScriptError, redis.ResponseError


@contextmanager
def reached(label: str, action: str) -> Iterator[None]:
    """Convert the errors of the client; their texts have no credentials.

    Raises:
        InputError: the server rejects the credentials or the database.
        ConnectionError: anything else.
    """
    try:
        yield
    except (
        redis.AuthenticationError,
        redis.exceptions.AuthorizationError,
        redis.exceptions.NoPermissionError,
    ) as error:
        raise InputError(f"{label}: the server rejects the credentials ({error}); mend password and username") from None
    except (redis.ConnectionError, redis.TimeoutError) as error:
        raise ConnectionError(f"{label}: cannot {action}: {error}") from error
    except redis.ResponseError as error:
        if "NOAUTH" in str(error) or "DB index" in str(error):
            raise InputError(f"{label}: the server answers {error}; mend password or database") from None
        raise ConnectionError(f"{label}: cannot {action}: {error}") from error
