"""Records that a Kafka sink creates, and rows that it rejects before the decision, tested without a broker."""

import json
import sys
from datetime import UTC, date, datetime
from decimal import Decimal

import cloudpickle
import pyarrow as pa
import pytest

from txstorm import TaskContext, TransactionAttempt
from txstorm.api.tuples import Origin, Tuple
from txstorm.errors import MissingDependency, SettingError, StateError
from txstorm.sinks.kafka import KafkaSink

SERVERS, SETTINGS = "nowhere:9092", {"sasl.password": "hunter2"}
ATTEMPT = TransactionAttempt(7, 70)


class Kept:
    def append_batch(self, table):
        self.table = table


class Resources:
    def __init__(self):
        self.kept = Kept()

    def sink(self, component, task, name):
        assert (component, name) == ("send", "out")
        return self.kept


def made(*rows, fields=("word", "n"), **options):
    """Return the records (key, value, timestamp in ms) that a Kafka sink with `options` creates from `rows`."""
    sink, resources = KafkaSink("out", "words", SERVERS, **options), Resources()
    sink.prepare(TaskContext("t", "send", 0, 1, stamp=1_700_000_000_123_456, resources=resources), None, ATTEMPT)
    for row in rows:
        sink.execute(Tuple(row, Origin(ATTEMPT, "split", "default", 0, tuple(fields))))
    sink.finish_batch()
    assert isinstance(resources.kept.table, pa.Table)
    return resources.kept.table.to_pylist()


def test_by_default_all_fields_are_a_json_object_at_the_transactions_time_also_times_and_decimals():
    assert made(("caf\u00e9", 1), ("tea", None)) == [
        {"key": None, "value": '{"word":"caf\u00e9","n":1}'.encode(), "timestamp": 1_700_000_000_123},
        {"key": None, "value": b'{"word":"tea","n":null}', "timestamp": 1_700_000_000_123},
    ]
    values = (datetime(2024, 2, 3, 4, 5, 6, tzinfo=UTC), date(2024, 2, 3), Decimal("1.50"), [1, {"a": True}])
    (row,) = made(values, fields="abcd")
    expected = {"a": "2024-02-03T04:05:06+00:00", "b": "2024-02-03", "c": "1.50", "d": [1, {"a": True}]}
    assert json.loads(row["value"]) == expected


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ("word", b"tea"),
        ("n", b"3"),
        (["n", "word"], b'{"n":3,"word":"tea"}'),
        (lambda row: f"{row['word']}-{row['n']}", b"tea-3"),
        (lambda row: b"\xff", b"\xff"),
        (lambda row: None, None),
    ],
)
def test_key_and_value_have_the_same_options(part, expected):
    (row,) = made(("tea", 3), key=part, value=part)
    assert row["key"] == row["value"] == expected
    (row,) = made((b"\x00\xff", None), key="word", value="n")  # bytes are sent unchanged, None is a tombstone
    assert (row["key"], row["value"]) == (b"\x00\xff", None)


@pytest.mark.parametrize("given", [datetime(2024, 1, 1, tzinfo=UTC), 1_704_067_200_000])
def test_the_timestamp_may_come_from_a_field(given):
    (row,) = made(("tea", given), value="word", timestamp="n")
    assert row["timestamp"] == 1_704_067_200_000


@pytest.mark.parametrize(
    ("row", "options", "told"),
    [
        ((b"tea", 1), {}, "the value of .* cannot be sent: bytes have no JSON form; send them as a field of their own"),
        (("tea", float("nan")), {}, "cannot be sent: Out of range float values are not JSON compliant"),
        (("tea", {1, 2}), {}, "set .* has no JSON form; give a function"),
        (("\ud800", 1), {}, "the value of .* cannot be sent: 'utf-8' codec"),
        (("tea", 1), {"key": lambda row: 5}, "the key of .* cannot be sent: the function returned int, expected bytes"),
        (("tea" * 40, 1), {"max_message_bytes": 100}, "137 bytes, expected at most 100; raise max_message_b"),
        (("tea", "noon"), {"timestamp": "n"}, "'n' is 'noon'; expected a datetime with a time zone or milliseconds"),
        (("tea", datetime(2024, 1, 1)), {"timestamp": "n"}, "expected a datetime with a time zone"),  # noqa: DTZ001
        (("tea", -1), {"timestamp": "n"}, "field 'n' is -1"),
    ],
)
def test_a_record_that_cannot_be_sent_names_the_transaction(row, options, told):
    with pytest.raises(StateError, match=told) as refused:
        made(row, **options)
    assert "sink 'out' (send[0], txid 7)" in str(refused.value)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"settings": {**SETTINGS, "transactional.id": "mine"}}, "'transactional.id' is txstorm's own; use transac"),
        ({"settings": {**SETTINGS, "acks": 1}}, "'acks' is txstorm's own"),
        ({"settings": SETTINGS, "key": 5}, "key is 5; expected a field's name"),
        ({"settings": SETTINGS, "value": []}, r"value is \[\]; expected a field's name"),
        ({"settings": SETTINGS, "colour": "red"}, "unexpected keyword argument 'colour'"),
    ],
)
def test_wrong_arguments_are_rejected_at_once(arguments, told):
    with pytest.raises(SettingError, match=told) as refused:
        KafkaSink("out", "words", SERVERS, **arguments)
    assert "hunter2" not in str(refused.value)


def test_copies_shipped_to_tasks_do_not_contain_the_settings():
    sink = KafkaSink("out", "words", SERVERS, settings=SETTINGS)
    shipped = cloudpickle.dumps(sink)
    assert b"hunter2" not in shipped
    copy = cloudpickle.loads(shipped)
    assert copy.outlet.writer is None
    assert copy.outlet.name == "out"
    assert "hunter2" not in repr(sink.outlet)


def test_without_the_client_the_error_names_the_install_command(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("txstorm.clients.kafka")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(MissingDependency, match=r"pip install 'txstorm\[kafka\]'"):
        KafkaSink("out", "words", SERVERS)
