"""Ids of recent results, for a `txstorm.joins.Deduplicator`: from a sink, a state, or the tail of a Kafka topic.

Each function returns another one without arguments, which reads the ids when a topology starts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from txstorm.api.names import near
from txstorm.errors import InputError
from txstorm.results.read import read_sink
from txstorm.results.views import StateView, checked_txid, committed_txid

Ids = Callable[[], list[Any]]
PATIENCE = 10.0
"""Timeout of each request to the brokers, in seconds."""


def recent_in_sink(data_dir: str | Path, sink: str, id: str | Sequence[str], *, txids: int = 1000) -> Ids:
    """Return a function that reads the ids in the rows of a sink; no ids before the first transaction is committed.

    Args:
        data_dir: the data directory of a topology, perhaps of the one that is starting.
        sink: the sink.
        id: the column or columns of the id.
        txids: the number of last transactions whose rows are read.
    """
    _check_count("recent_in_sink: txids", txids)

    def read() -> list[Any]:
        directory = Path(data_dir)
        if not committed_txid(directory):
            return []
        last = checked_txid(directory, f"sinks/{sink}")
        return _columns(read_sink(directory, sink, max(1, last - txids + 1), last), id, f"sink {sink!r}")

    return read


def recent_in_state(data_dir: str | Path, state: str, id: str | Sequence[str]) -> Ids:
    """Return a function that reads the ids in the rows of a state; no ids before the first transaction is committed.

    Args:
        data_dir: the data directory of a topology, perhaps of the one that is starting.
        state: the state; it must be bounded, for example by a time to live, since all its rows are read.
        id: the column or columns of the id.
    """

    def read() -> list[Any]:
        if not committed_txid(data_dir):
            return []
        return _columns(StateView(data_dir, state).to_arrow(), id, f"state {state!r}")

    return read


def recent_in_topic(
    topic: str,
    bootstrap_servers: str,
    id: str | Sequence[str] | Callable[[bytes], Any],
    *,
    records: int = 1000,
    settings: Mapping[str, Any] | None = None,
) -> Ids:
    """Return a function that reads the ids in the last records of a Kafka topic; aborted transactions are left out.

    It asks the brokers several times, which can take longer than the default `pin_timeout`.

    Args:
        topic: the topic.
        bootstrap_servers: ``HOST:PORT``, or several with commas.
        id: the field or fields of the id in records that are JSON objects, as a `KafkaSink` writes them; or a function
            that returns the id in the value of a record, or None if it has none.
        records: the number of last offsets of each partition that are read.
        settings: client settings of librdkafka, including those for SASL and SSL.
    """
    _check_count("recent_in_topic: records", records)
    whole = {**(settings or {}), "bootstrap.servers": bootstrap_servers}

    def read() -> list[Any]:
        values = _tail(topic, whole, records)
        found = map(id, values) if callable(id) else (_in_json(topic, value, id) for value in values)
        return [one for one in found if one is not None]

    return read


def _tail(topic: str, settings: Mapping[str, Any], records: int) -> list[bytes]:
    """Return the values of the last records of all partitions."""
    from txstorm.clients.kafka.cluster import EARLIEST, LATEST, Cluster
    from txstorm.clients.kafka.reader import RangeReader

    cluster = Cluster(settings)
    found = cluster.topics([topic], PATIENCE).get(topic)
    if found is None:
        msg = f"recent_in_topic: {settings['bootstrap.servers']} has no topic {topic!r}; create it, or correct the name"
        raise InputError(msg)
    partitions = [(topic, number) for number in found.leaders]
    begins = cluster.offsets(dict.fromkeys(partitions, EARLIEST), PATIENCE)
    ends = cluster.offsets(dict.fromkeys(partitions, LATEST), PATIENCE)
    ranges = {}
    for one in partitions:
        end = ends[one] or 0
        start = max(begins[one] or 0, end - records)
        if start < end:
            ranges[one] = (start, end)
    reader = RangeReader(settings)
    try:
        messages = reader.read(ranges, {topic: found.id}, PATIENCE) if ranges else {}
    finally:
        reader.close()
    return [message.value() for one in sorted(messages) for message in messages[one] if message.value() is not None]


def _in_json(topic: str, value: bytes, id: str | Sequence[str]) -> Any:
    try:
        record = json.loads(value)
        return record[id] if isinstance(id, str) else tuple(record[name] for name in id)
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"recent_in_topic: topic {topic!r}: expected records that are JSON objects with {id!r}, got {value[:80]!r} "
            f"({type(error).__name__}: {error}); give a function that returns the id in the value of a record"
        ) from None


def _columns(rows: pa.Table, id: str | Sequence[str], where: str) -> list[Any]:
    names = [id] if isinstance(id, str) else list(id)
    if missing := [name for name in names if name not in rows.column_names]:
        known = list(rows.column_names)
        raise InputError(f"{where} has no column {missing[0]!r}{near(missing[0], known)}; it has {', '.join(known)}")
    lists = [rows.column(name).to_pylist() for name in names]
    return list(lists[0]) if isinstance(id, str) else list(zip(*lists, strict=True))


def _check_count(what: str, count: Any) -> None:
    if type(count) is not int or count < 1:
        raise InputError(f"{what}: expected an int of at least 1, got {count!r}")
