"""Namespace in Redis: prepared and committed changes of a state.

A namespace is three hashes: the committed values, the prepared changes, and the mark (format, owner, epoch, places).
Every call that writes runs one script, which Redis executes atomically, and which first compares the epochs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from txstorm.clients.redis.connection import RedisAddress, connect, reached
from txstorm.errors import FencedError, StateError, TableCorrupt

FORMATS = ("1", "2")
"""Formats of namespaces: 1, or 2 if texts of keys are of the one form of equal keys (`txstorm.keys.EQUAL`)."""
CHUNK = 5000
"""Maximum number of changes in one call, so that no call blocks the server for long."""
DELETED, VALUE = b"-", b"+"

_SCRIPT = """
local data, prepared, mark = KEYS[1], KEYS[2], KEYS[3]
local action, owner, epoch = ARGV[1], ARGV[2], ARGV[3]
local format = redis.call('HGET', mark, 'format')
if format and format ~= '1' and format ~= '2' then return {'format', format} end
local held_owner = redis.call('HGET', mark, 'owner') or ''
if owner ~= '' and held_owner ~= '' and owner ~= held_owner then return {'owner', held_owner} end
local held = redis.call('HGET', mark, 'epoch') or '0'
if epoch == '' then epoch = held end
if tonumber(held) > tonumber(epoch) then return {'fenced', held} end

if action == 'lead' then
    redis.call('HSET', mark, 'format', format or '2', 'epoch', epoch)
    if owner ~= '' then redis.call('HSET', mark, 'owner', owner) end
elseif action == 'begin' then
    redis.call('DEL', prepared)
    redis.call('HDEL', mark, 'prepared')
elseif action == 'add' then
    for i = 4, #ARGV, 2 do redis.call('HSET', prepared, ARGV[i], ARGV[i + 1]) end
elseif action == 'seal' then
    local committed = redis.call('HGET', mark, 'committed') or ''
    if ARGV[5] and committed ~= ARGV[5] then return {'lost', committed} end
    redis.call('HSET', mark, 'prepared', ARGV[4])
elseif action == 'commit' then
    local found = redis.call('HGET', mark, 'prepared') or ''
    if found ~= ARGV[4] then return {'unprepared', found} end
    local changes = redis.call('HGETALL', prepared)
    for i = 1, #changes, 2 do
        if string.sub(changes[i + 1], 1, 1) == '-' then redis.call('HDEL', data, changes[i])
        else redis.call('HSET', data, changes[i], string.sub(changes[i + 1], 2)) end
    end
    redis.call('DEL', prepared)
    redis.call('HDEL', mark, 'prepared')
    if ARGV[4] ~= 'now' then redis.call('HSET', mark, 'committed', ARGV[4]) end
end
return {'ok', epoch}
"""


class RedisNamespace:
    """The changes of one namespace in Redis, opened with an epoch. Not thread-safe.

    Places are passed as text, ``TIMELINE:TXID``. An empty `owner` is any; `epoch`: that of the coordinator; None: the
    one found.

    Raises:
        FencedError: the namespace was opened with a higher epoch.
        StateError: the namespace belongs to another owner, or is in a newer format.
        InputError: the server rejects the credentials or the database.
        OSError: the server cannot be reached.
    """

    def __init__(self, address: RedisAddress, namespace: str, owner: str = "", epoch: int | None = None) -> None:
        self._label = f"state {namespace!r} in {address}"
        # Braces make the three keys one slot of a cluster.
        self._keys = [f"{{{namespace}}}{part}" for part in ("", ":prepared", ":mark")]
        self._owner = owner
        self._epoch = "" if epoch is None else str(epoch)
        self._client = connect(address)
        self._script = self._client.register_script(_SCRIPT)
        try:
            self._epoch = self._run("lead")
        except BaseException:
            self._client.close()
            raise

    def get(self, key: bytes) -> bytes | None:
        """Return the committed value of `key`; None if it has none."""
        with reached(self._label, "read"):
            found: Any = self._client.hget(self._keys[0], key)
        return found if found is None else bytes(found)

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield the committed (key, value) pairs, in any order, each once if nothing is committed meanwhile."""
        seen: set[bytes] = set()  # a scan may return a key twice while the server resizes the hash
        scan = iter(self._client.hscan_iter(self._keys[0], count=1000))
        while True:
            with reached(self._label, "iterate"):
                found: Any = next(scan, None)
            if found is None:
                return
            key, value = found
            if key not in seen:
                seen.add(key)
                yield key, value

    def form(self) -> int:
        """Return the form of the texts of keys, which is the format: see `txstorm.keys.text`."""
        with reached(self._label, "read"):
            found: Any = self._client.hget(self._keys[2], "format")
        return int(found)

    def marks(self) -> tuple[str | None, str | None]:
        """Return the place last committed, and the one that is prepared."""
        with reached(self._label, "read"):
            found: Any = self._client.hmget(self._keys[2], ["committed", "prepared"])
        committed, prepared = (None if one is None else one.decode() for one in found)
        return committed, prepared

    def prepare(self, place: str, changes: Mapping[bytes, bytes | None], after: str | None = None) -> None:
        """Keep `changes` as those of `place`, in place of earlier ones; nothing is prepared until all are stored.

        `after`: the place that must be committed, empty for none; None: any. Raises `TableCorrupt` if another one is.
        """
        self._run("begin")
        rest = iter(changes.items())
        while chunk := list(islice(rest, CHUNK)):
            pairs = ((key, DELETED if value is None else VALUE + value) for key, value in chunk)
            self._run("add", *(part for pair in pairs for part in pair))
        self._run("seal", place, *([] if after is None else [after]))

    def commit(self, place: str) -> None:
        """Apply the prepared changes of `place`."""
        self._run("commit", place)

    def write(self, changes: Mapping[bytes, bytes | None]) -> None:
        """Apply `changes` at once, without a place."""
        self.prepare("now", changes)
        self.commit("now")

    def rollback(self) -> None:
        """Drop the prepared changes."""
        self._run("begin")

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _run(self, action: str, *arguments: str | bytes) -> str:
        """Run the script; return the epoch with which it ran."""
        with reached(self._label, action):
            answer: Any = self._script(keys=self._keys, args=[action, self._owner, self._epoch, *arguments])
        outcome, found = (one.decode() for one in answer)
        if outcome == "ok":
            return str(found)
        if outcome == "fenced":
            raise FencedError(
                f"{self._label}: expected the epoch {self._epoch} of this coordinator, found {found}: another one leads"
            )
        if outcome == "owner":
            msg = (
                f"{self._label}: expected that of {self._owner}, found that of {found}; name the component "
                "differently, or use another database of the server"
            )
        elif outcome == "lost":
            raise TableCorrupt(
                f"{self._label}: expected {arguments[1]!r} as last committed, found {found or 'nothing'}: it was "
                "emptied, or replaced by a copy; restore it, or accept it at the next start with state_may_be_lost=true"
            )
        elif outcome == "format":
            known = " or ".join(FORMATS)
            msg = f"{self._label}: expected format {known}, found {found}: a newer txstorm wrote it; upgrade this one"
        else:
            msg = f"{self._label}: {arguments[0]!r} cannot be committed, prepared is {found or 'nothing'}"
        raise StateError(msg)
