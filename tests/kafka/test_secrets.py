"""Passwords of the brokers and of the ledger appear in no output or file, of successful or failing runs."""

import logging
import traceback
from collections.abc import Iterator

import pytest
from kafka_cases import COLUMNS, QUICK
from kazoo.client import KazooClient

from txstorm import BasicBolt, TransactionalTopologyBuilder, run
from txstorm.errors import TxstormError
from txstorm.ledger.credentials import AUTH
from txstorm.plan.explain import explain
from txstorm.sinks import DeltaSink, KafkaSink
from txstorm.spouts import TransactionalKafkaSpout

pytestmark = pytest.mark.integration

WRONG, OWNERS = "canary-of-a-wrong-password-8842", "canary-of-the-owner-7391"


class Fussy(BasicBolt):
    """A bolt that forwards its input, but raises for the record `poison`."""

    fields = tuple(COLUMNS)

    def __init__(self, poison: str) -> None:
        self.poison = poison

    def execute(self, tuple, collector):
        if tuple["value"] == self.poison:
            raise ValueError(f"a record that is {tuple['value']}")
        collector.emit(*(tuple[name] for name in COLUMNS))


def topology(settings: dict[str, str], source: str, target: str, poison: str):
    """Build a topology that reads from and writes to topics of a secured cluster."""
    secure = {name: value for name, value in settings.items() if name != "bootstrap.servers"}
    servers = settings["bootstrap.servers"]
    spout = TransactionalKafkaSpout(source, servers, fields=tuple(COLUMNS), settings=secure, patience=2.0)
    builder = TransactionalTopologyBuilder("secrets", "records", spout)
    builder.set_bolt("fussy", Fussy(poison)).local_or_shuffle_grouping("records")
    builder.set_bolt("rows", DeltaSink("rows", COLUMNS)).global_grouping("fussy")
    sink = KafkaSink("sent", target, servers, value="value", settings=secure)
    builder.set_bolt("sent", sink).local_or_shuffle_grouping("fussy")
    return builder.set_settings(QUICK).build_topology()


def shown(made, handle) -> Iterator[str]:
    """Yield every textual representation of a topology and of the handle of its run."""
    yield from (repr(made), str(made), repr(made.spout.object), made.fingerprint())
    yield from (made.describe(form) for form in ("text", "json", "mermaid", "dot"))
    yield explain(made)
    yield from (repr(handle), str(handle.status), str(handle.progress), str(handle.lastProgress))


def told(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)) + repr(error)


def nodes(client: KazooClient, path: str) -> Iterator[tuple[str, bytes]]:
    yield path, client.get(path)[0]
    for name in client.get_children(path):
        yield from nodes(client, f"{path}/{name}")


def test_secrets_are_absent_from_successful_and_failing_runs(
    kafka_broker, zookeeper_server, tmp_path, monkeypatch, caplog, capfd
):
    monkeypatch.setenv(AUTH, f"owner:{OWNERS}")
    caplog.set_level(logging.DEBUG)
    source, target = kafka_broker.make_topic(partitions=2), kafka_broker.make_topic()
    kafka_broker.produce(source, ["good"] * 20 + ["bad"])
    hosts, _, chroot = zookeeper_server.new_chroot().partition("/")
    options = {
        "engine": "local", "data_dir": tmp_path / "data", "ledger": f"zookeeper:{hosts}/{chroot}",
        "available_now": True, "journal": tmp_path / "journal",
    }  # fmt: skip
    texts = []

    with pytest.raises(TxstormError) as refused:
        run(topology({**kafka_broker.secure, "sasl.password": WRONG}, source, target, "bad"), **options)
    texts.append(told(refused.value))
    failing = run(topology(kafka_broker.secure, source, target, "bad"), **options)
    with pytest.raises(TxstormError, match="a record that is bad") as failed:
        failing.awaitTermination()
    texts.append(told(failed.value))
    made = topology(kafka_broker.secure, source, target, "none")
    handle = run(made, **options)
    handle.awaitTermination()
    texts += [*shown(made, handle), caplog.text, *capfd.readouterr()]
    client = KazooClient(zookeeper_server.hosts, auth_data=[("digest", f"owner:{OWNERS}")])
    client.start(timeout=10)
    found = [(str(path), path.read_bytes()) for path in tmp_path.rglob("*") if path.is_file()]
    found += nodes(client, f"/{chroot}")
    client.stop()
    client.close()
    found += [(text[:80], text.encode()) for text in texts]
    assert len(found) > 30
    assert [where for where, content in found if source.encode() in content]  # the search does find other strings
    secrets = (WRONG, OWNERS, kafka_broker.secure["sasl.password"])
    assert [where for where, content in found for secret in secrets if secret.encode() in content] == []
