"""Rows by key and time in Redis: a sorted set for each key, an index of keys by oldest time, and a mark beside them.

Keys of a prefix: ``{prefix}:rows:KEY`` is a sorted set, by time, of members made of a document, a line feed and an id;
``{prefix}:ids:KEY`` a hash whose fields are the ids of these members; ``{prefix}:oldest`` a sorted set of keys by their
oldest time, so that an expiry visits only keys that have something to expire; ``{prefix}:mark`` a hash of format, mark
and number of rows. A score is a float: beyond 2^53 microseconds (the year 2255) times are rounded, so that the caller
compares again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from txstorm.clients.redis.connection import (
    NoScriptError,
    RedisAddress,
    ResponseError,
    connect,
    connection_of,
    pipelined,
    reached,
)
from txstorm.errors import InputError, StateError

FORMAT = "1"
ROWS, BYTES = 500, 4 << 20
"""Limits of one call of a script, so that none blocks the server for long."""
LOOKUPS = 10_000
"""Maximum number of keys in one pipeline."""
SAMPLE = 200
OLDEST_SERVER = (6, 2)

_CHECKED = """
local mark, oldest, base = KEYS[1], KEYS[2], KEYS[3]
local format = redis.call('HGET', mark, 'format')
if format and format ~= '1' then return redis.error_reply('FORMAT ' .. format) end
"""
_PUT = f"""{_CHECKED}
local added = 0
for i = 1, #ARGV, 4 do
    local key, id, time, member = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
    if redis.call('HSETNX', base .. 'ids:' .. key, id, '') == 1 then
        redis.call('ZADD', base .. 'rows:' .. key, time, member)
        redis.call('ZADD', oldest, 'LT', time, key)
        added = added + 1
    end
end
if not format then redis.call('HSET', mark, 'format', '1') end
if added > 0 then redis.call('HINCRBY', mark, 'rows', added) end
return added
"""
# The first write of each step deletes, which a full server allows; then it allows the others of the script as well.
_EXPIRE = f"""{_CHECKED}
local before, limit = '(' .. ARGV[1], tonumber(ARGV[2])
local removed = 0
for _, key in ipairs(redis.call('ZRANGEBYSCORE', oldest, '-inf', before, 'LIMIT', 0, limit)) do
    local rows, ids = base .. 'rows:' .. key, base .. 'ids:' .. key
    local members = redis.call('ZRANGEBYSCORE', rows, '-inf', before, 'LIMIT', 0, limit - removed)
    for _, member in ipairs(members) do
        redis.call('HDEL', ids, string.sub(member, string.find(member, '\\n', 1, true) + 1))
    end
    if #members > 0 then redis.call('ZREMRANGEBYRANK', rows, 0, #members - 1) end
    removed = removed + #members
    local first = redis.call('ZRANGE', rows, 0, 0, 'WITHSCORES')
    if first[1] then redis.call('ZADD', oldest, first[2], key) else redis.call('ZREM', oldest, key) end
    if removed >= limit then break end
end
if removed > 0 then redis.call('HINCRBY', mark, 'rows', -removed) end
return removed
"""
_REPLACE = f"""{_CHECKED}
if (redis.call('HGET', mark, 'mark') or '') ~= ARGV[1] then return 0 end
redis.call('HSET', mark, 'format', '1', 'mark', ARGV[2])
return 1
"""


class RowSets:
    """Rows of one prefix in Redis. Not thread-safe.

    The first call checks format and settings of the server.

    Raises, in every call:
        StateError: the rows are of a newer format, or some were lost.
        InputError: the server rejects the credentials, is too old, or evicts rows.
        OSError: the server cannot be reached, or is out of memory.
    """

    def __init__(self, address: RedisAddress, prefix: str) -> None:
        self.label = f"join store {prefix!r} in {address}"
        # Braces make all keys one slot of a cluster.
        self._base = f"{{{prefix}}}:".encode()
        self._keys = [self._base + b"mark", self._base + b"oldest", self._base]
        self._client = connect(address)
        self._lookups = connection_of(self._client)
        self._scripts: dict[str, str] = {}
        self._checked = False

    def put(self, rows: Iterable[tuple[bytes, bytes, int, bytes]]) -> None:
        """Store (key, id, time, document) of rows whose (key, id) is not stored, in one round trip."""
        calls: list[tuple[Any, ...]] = []
        arguments: list[Any] = []
        size = 0
        for key, id_, time, document in rows:
            arguments += (key, id_, time, b"%b\n%b" % (document, id_))
            size += len(document) + len(key)
            if size > BYTES or len(arguments) >= ROWS * 4:
                calls.append(tuple(arguments))
                arguments, size = [], 0
        if arguments:
            calls.append(tuple(arguments))
        self._run("put rows", _PUT, calls)

    def get(self, keys: Sequence[bytes], start: int | None, end: int | None) -> list[list[bytes]]:
        """Return the documents of each key by time, pipelined; those at the bounds may be outside by rounding."""
        lowest, highest = "-inf" if start is None else start, "+inf" if end is None else end
        name, tail = self._base + b"rows:", b"\r\n%b%b" % (_bulk(lowest), _bulk(highest))
        command = b"*4\r\n" + _bulk("ZRANGEBYSCORE")
        found: list[list[bytes]] = []
        self._check()
        for first in range(0, len(keys), LOOKUPS):
            chunk = keys[first : first + LOOKUPS]
            packed = b"".join([b"%b$%d\r\n%b%b%b" % (command, len(name) + len(key), name, key, tail) for key in chunk])
            with self._reached("look up keys"):
                found += pipelined(self._lookups, packed, len(chunk))
        return [[member.partition(b"\n")[0] for member in members] for members in found]

    def expire(self, before: int) -> None:
        """Remove the rows with times below `before`, some thousand in each call."""
        limit = ROWS * 4
        while self._run("expire rows", _EXPIRE, [(before, limit)])[0] >= limit:
            pass

    def mark(self) -> str | None:
        """Return the mark; raise `StateError` if rows were lost beside it."""
        self._checked = False
        self._check()
        with self._reached("read its mark"):
            found: Any = self._client.hget(self._keys[0], "mark")
        return None if found is None else bytes(found).decode()

    def replace_mark(self, expected: str | None, mark: str) -> bool:
        """Compare-and-set: store `mark` if the stored one is `expected`; return whether it was."""
        return bool(self._run("replace its mark", _REPLACE, [(expected or "", mark)])[0])

    def close(self) -> None:
        """Close the connections; the next call opens and checks again."""
        self._lookups.disconnect()
        self._client.close()
        self._checked = False

    def _run(self, action: str, script: str, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Run `script` with the arguments of each call, in one round trip; return the answers."""
        self._check()
        with self._reached(action):
            try:
                return self._scripted(script, calls)
            except NoScriptError:  # the server has been restarted; what was done before is idempotent
                self._scripts.clear()
                return self._scripted(script, calls)

    def _scripted(self, script: str, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        digest = self._scripts.get(script)
        if digest is None:
            digest = self._scripts[script] = self._client.script_load(script)
        pipeline = self._client.pipeline(transaction=False)
        for arguments in calls:
            pipeline.execute_command("EVALSHA", digest, 3, *self._keys, *arguments)
        return _answers(pipeline)

    def _check(self) -> None:
        """Check, once, the server's version and settings, the format, and that a sample of the keys has rows."""
        if self._checked:
            return
        with self._reached("open it"):
            pipeline = self._client.pipeline(transaction=False)
            pipeline.info("server")
            pipeline.info("memory")
            pipeline.hmget(self._keys[0], ["format", "rows"])
            pipeline.exists(self._keys[1])
            server, memory, (format_, rows), indexed = _answers(pipeline)
        if format_ not in (None, FORMAT.encode()):
            raise StateError(self._foreign(format_.decode()))
        version = tuple(int(part) for part in str(server.get("redis_version", "0")).split(".")[:2])
        if version < OLDEST_SERVER:
            msg = f"{self.label}: the server is Redis {server.get('redis_version')}; expected 6.2 or later: upgrade it"
            raise InputError(msg)
        policy = str(memory.get("maxmemory_policy"))
        if policy.startswith("allkeys") and memory.get("maxmemory"):
            raise InputError(
                f"{self.label}: the server evicts rows (maxmemory-policy {policy}), so that left rows would lose their "
                "matches; set maxmemory-policy noeviction"
            )
        lost = self._sampled() if indexed else int(rows or 0) > 0
        if lost:
            msg = f"{self.label} has lost rows: keys of its index have none; restore it, or use another prefix"
            raise StateError(msg)
        self._checked = True

    def _sampled(self) -> bool:
        """Whether a random sample of the index has keys without rows: they were evicted or deleted."""
        with self._reached("check it"):
            keys: Any = self._client.zrandmember(self._keys[1], SAMPLE)
            names = [self._base + b"rows:" + key for key in keys]
            return bool(self._client.exists(*names) < len(names)) if names else False

    def _foreign(self, found: str) -> str:
        return f"{self.label}: expected format {FORMAT}, found {found}: a newer txstorm wrote it; upgrade this one"

    @contextmanager
    def _reached(self, action: str) -> Iterator[None]:
        """Convert the errors of the client, as `reached` does, and those that only another prefix mends."""
        with reached(self.label, action):
            try:
                yield
            except ResponseError as error:
                code, _, rest = str(error).partition(" ")
                if code == "FORMAT":
                    raise StateError(self._foreign(rest)) from None
                if code == "WRONGTYPE":
                    msg = f"{self.label}: a key of this prefix has other content ({error}); use another prefix"
                    raise StateError(msg) from None
                raise


def _bulk(value: Any) -> bytes:
    """Pack one argument of a command."""
    text = str(value).encode()
    return b"$%d\r\n%b\r\n" % (len(text), text)


def _answers(pipeline: Any) -> list[Any]:
    """Return the answers of a pipeline; the error that is raised for one does not show the content of rows."""
    answers: list[Any] = pipeline.execute(raise_on_error=False)
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    return answers
