"""Invalid arguments of Kafka spouts: rejected at once, with the expected form."""

from datetime import datetime

import pytest

from txstorm.errors import SettingError
from txstorm.spouts import TransactionalKafkaSpout


@pytest.mark.parametrize(
    ("topics", "options", "said"),
    [
        ([], {}, "topics is"),
        ("two words", {}, "can be no topic"),
        ("^web-(", {}, "no regular expression"),
        ("t", {"start": "now"}, "start is 'now', expected 'earliest', 'latest'"),
        ("t", {"start": datetime(2026, 1, 1)}, "no time zone"),  # noqa: DTZ001 - that is the fault
        ("t", {"start": {"u": {0: 1}}}, "names topic 'u'"),
        ("t", {"start": {"t": {0: -1}}}, "offset"),
        ("t", {"max_batch_rows": 0}, "max_batch_rows is 0"),
        ("t", {"max_batch_bytes": True}, "max_batch_bytes is True"),
        ("t", {"patience": 0}, "patience is 0"),
        ("t", {"fields": ["value", "values"]}, "fields is"),
        ("t", {"fields": []}, "fields is"),
        ("t", {"value": "xml"}, "value is 'xml'"),
        ("t", {"isolation_level": "dirty"}, "isolation_level is 'dirty'"),
        ("t", {"settings": {"group.id": "mine"}}, "consumer_group="),
        ("t", {"settings": {"auto.offset.reset": "latest"}}, "start="),
        ("t", {"settings": {"fetch.wait.max": 1}}, 'No such configuration property: "fetch.wait.max"'),
        ("t", {"settings": {"sasl.password": "secret", "security.protocol": "TLS"}}, "security.protocol"),
    ],
)
def test_it_is_refused(topics, options, said):
    with pytest.raises(SettingError) as caught:
        TransactionalKafkaSpout(topics, "127.0.0.1:9092", **options)
    assert said in str(caught.value)
    assert "secret" not in str(caught.value)


def test_several_faults_are_reported_at_once():
    with pytest.raises(SettingError, match=r"max_batch_rows.*discover_seconds.*start"):
        TransactionalKafkaSpout("t", "127.0.0.1:9092", max_batch_rows=-1, discover_seconds=-1, start="never")
