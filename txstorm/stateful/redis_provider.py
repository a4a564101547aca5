"""States in Redis: the provider, and its configuration with Storm's keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from txstorm.api.external import KeyValueState, StateContext, StateProvider
from txstorm.errors import InputError
from txstorm.stateful.classes import known_class
from txstorm.stateful.key_values import Changes, Form, KeySerializer, Place, StoredKeyValueState

if TYPE_CHECKING:
    from txstorm.clients.redis.connection import RedisAddress
    from txstorm.clients.redis.namespace import RedisNamespace

_POOL = {"host": str, "port": int, "timeout": int, "database": int, "password": str, "user": str, "ssl": bool}
_CLASSES = ("keyClass", "valueClass", "keySerializerClass", "valueSerializerClass")
_KNOWN = {*_CLASSES, "jedisPoolConfig"}


class RedisStateProvider(StateProvider):
    """Provider of key-value states in a Redis server, which should run with ``appendfsync always``."""

    def new_state(
        self, namespace: str, conf: Mapping[str, Any] | None = None, context: StateContext | None = None
    ) -> KeyValueState:
        """Open the state of `namespace`; see `txstorm.api.external.StateProvider`.

        `conf` has Storm's keys: ``keyClass``, ``valueClass``, ``keySerializerClass``, ``valueSerializerClass`` and
        ``jedisPoolConfig`` with ``host``, ``port``, ``timeout`` (milliseconds), ``database``, ``password``, ``user``
        and ``ssl``. Classes are given as MODULE:CLASS.

        Raises:
            InputError: the configuration is wrong, or the server rejects the credentials.
            MissingDependency: the package redis is not installed.
            FencedError: a coordinator with a higher epoch has opened the state.
            StateError: the namespace belongs to another topology or data directory.
            OSError: the server cannot be reached.
        """
        from txstorm.clients.redis.namespace import RedisNamespace

        form, address = _form(conf or {}), _address(conf or {})
        owner, epoch, timeline = "", None, 0
        if context is not None:
            owner = f"topology {context.topology!r} (data directory {context.incarnation})"
            epoch, timeline = context.epoch, context.timeline
        opened = RedisNamespace(address, namespace, owner, epoch)
        if isinstance(form.keys, KeySerializer):
            form = form._replace(keys=KeySerializer(opened.form()))
        return StoredKeyValueState(namespace, _RedisStore(opened), timeline, form)


class _RedisStore:
    """`ChangeStore` over a namespace in Redis."""

    def __init__(self, namespace: RedisNamespace) -> None:
        self._namespace = namespace

    def get(self, key: bytes) -> bytes | None:
        return self._namespace.get(key)

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        return self._namespace.items()

    def places(self) -> tuple[Place | None, Place | None]:
        committed, prepared = map(_place, self._namespace.marks())
        return committed, prepared

    def prepare(self, place: Place, changes: Changes, after: Place | None) -> None:
        self._namespace.prepare(_text(place), changes, "" if after is None else _text(after))

    def commit(self, place: Place) -> None:
        self._namespace.commit(_text(place))

    def rollback(self) -> None:
        self._namespace.rollback()

    def write(self, changes: Changes) -> None:
        self._namespace.write(changes)

    def close(self) -> None:
        self._namespace.close()


def _text(place: Place) -> str:
    return f"{place.timeline}:{place.txid}"


def _place(text: str | None) -> Place | None:
    if text is None or text == "now":  # a write without a txid that was cut short: nothing of it counts
        return None
    timeline, txid = text.split(":")
    return Place(int(timeline), int(txid))


def checked_conf(conf: Mapping[str, Any]) -> Mapping[str, Any]:
    """Check a configuration and return its ``jedisPoolConfig``; raise `InputError`, which shows no values."""
    unknown = sorted(set(conf) - _KNOWN)
    if unknown:
        msg = f"Redis state: configuration key {unknown[0]!r} is unknown; known are {', '.join(sorted(_KNOWN))}"
        raise InputError(msg)
    pool = conf.get("jedisPoolConfig", {})
    if not isinstance(pool, Mapping):
        msg = "Redis state: jedisPoolConfig is no JSON object; expected host, port, timeout, database, password"
        raise InputError(msg)
    for key, value in pool.items():
        kind = _POOL.get(key)
        if kind is None:
            raise InputError(f"Redis state: jedisPoolConfig has the key {key!r}, expected one of {', '.join(_POOL)}")
        if value is not None and type(value) is not kind:
            msg = f"Redis state: jedisPoolConfig: {key} is a {type(value).__name__}, expected a {kind.__name__}"
            raise InputError(msg)
    return pool


def _address(conf: Mapping[str, Any]) -> RedisAddress:
    from txstorm.clients.redis.connection import RedisAddress

    pool = checked_conf(conf)
    return RedisAddress(
        host=pool.get("host") or "localhost",
        port=pool.get("port") or 6379,
        database=pool.get("database") or 0,
        timeout=(pool.get("timeout") or 2000) / 1000,
        username=pool.get("user"),
        password=pool.get("password"),
        ssl=pool.get("ssl") or False,
    )


def _form(conf: Mapping[str, Any]) -> Form:
    """Build the form of the states from the configured classes."""
    plain = Form()
    keys, values, key_serializer, value_serializer = (
        known_class(f"Redis state: {name}", conf[name]) if conf.get(name) else None for name in _CLASSES
    )
    return Form(
        keys=plain.keys if key_serializer is None else key_serializer(),
        values=plain.values if value_serializer is None else value_serializer(),
        key_type=keys,
        value_type=values,
    )
