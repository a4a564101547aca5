"""Malicious pickles, planted in every file that txstorm reads: they must never be unpickled."""

import ast
import os
import pickle
import re
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from bad_input_cases import WORDS, go, topology, write_words
from confluent_kafka import Producer
from crashes import crashing
from kazoo.client import KazooClient

import txstorm
from txstorm import TransactionalTopologyBuilder
from txstorm.cli.replays import replay_journal
from txstorm.errors import TxstormError
from txstorm.ledger.sqlite import entry_crc
from txstorm.results.read import read_changes, read_sink, read_state
from txstorm.sinks import DeltaSink
from txstorm.spouts import TransactionalKafkaSpout
from txstorm.storage.tables.history import read_history

PACKAGE = Path(txstorm.__file__).parent


class Canary:
    """An object that creates a directory when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = os.fspath(path)

    def __reduce__(self):
        return (os.mkdir, (self.path,))


@pytest.fixture
def planted(tmp_path) -> Iterator[bytes]:
    """Yield a pickle; fail if anything has unpickled it during the test."""
    ran = tmp_path / "it-ran"
    content = pickle.dumps(Canary(ran))
    yield content
    assert not ran.exists()
    pickle.loads(content)
    assert ran.exists()


@pytest.fixture(scope="module")
def bases(tmp_path_factory) -> Path:
    """Return data directories: one cleanly stopped, and one with a decided group that is not published."""
    home = tmp_path_factory.mktemp("bases")
    source = write_words(home / "words.txt")
    go(topology(source), home / "stopped", settings={"max_spout_pending": 1}, journal=home / "journal")
    with crashing("p6.after", 3):
        go(topology(source), home / "decided", settings={"max_spout_pending": 1})
    return home


def use(home: Path, data_dir: Path) -> None:
    """Read everything and continue the run; errors must be reported."""
    for look in (
        lambda: read_state(data_dir, "counts"),
        lambda: read_changes(data_dir, "counts", 1, 2),
        lambda: read_sink(data_dir, "lines"),
        lambda: read_history(data_dir),
        lambda: go(topology(home / "words.txt"), data_dir),
    ):
        try:
            look()
        except TxstormError as error:
            assert "Traceback" not in str(error)


def copied(bases: Path, base: str, to: Path) -> Path:
    shutil.copytree(bases / base, to)
    return to


@pytest.mark.parametrize("base", ["stopped", "decided"])
def test_instead_of_any_file(base, bases, planted, tmp_path):
    files = [path.relative_to(bases / base) for path in (bases / base).rglob("*") if path.is_file()]
    # Of what there are many of one kind, two will do.
    kinds: dict[tuple[str, str], list[Path]] = {}
    for path in sorted(files):
        kinds.setdefault((str(path.parent), path.suffix), []).append(path)
    chosen = [path for some in kinds.values() for path in dict.fromkeys((some[0], some[-1]))]
    chosen += [Path(f"index/counts/1/{name}") for name in ("CURRENT", "note.pkl")]
    chosen += [Path("spill/task.arrow"), Path("ledger.json"), Path("changes/counts/_txstorm/checkpoint.json")]
    assert len(chosen) > 15
    for number, path in enumerate(chosen):
        data_dir = copied(bases, base, tmp_path / str(number))
        (data_dir / path).parent.mkdir(parents=True, exist_ok=True)
        (data_dir / path).write_bytes(planted)
        use(bases, data_dir)


@pytest.mark.parametrize("base", ["stopped", "decided"])
def test_instead_of_any_value_of_the_ledger(base, bases, planted, tmp_path):
    with sqlite3.connect(bases / base / "ledger.db") as ledger:
        paths = [path for (path,) in ledger.execute("SELECT path FROM kv")]
    ledger.close()
    assert len(paths) > 5
    for number, path in enumerate([*paths, "savepoints/mine", "control/request", "rewind/decided"]):
        data_dir = copied(bases, base, tmp_path / str(number))
        with sqlite3.connect(data_dir / "ledger.db") as ledger:
            row = (path, planted, 7, entry_crc(path.encode(), planted, 7))
            ledger.execute("INSERT OR REPLACE INTO kv(path, value, version, crc) VALUES (?, ?, ?, ?)", row)
        ledger.close()
        use(bases, data_dir)


def test_as_a_journal_and_in_one(bases, planted, tmp_path):
    for content in (planted, (bases / "journal").read_bytes() + planted):
        (tmp_path / "journal").write_bytes(content)
        with pytest.raises(TxstormError):
            replay_journal(str(tmp_path / "journal"))


def test_as_a_row(planted, tmp_path):
    source = tmp_path / "words.txt"
    source.write_bytes(b"a\n" + planted.replace(b"\n", b"").decode("latin-1").encode() + b"\n")
    assert go(topology(source), tmp_path / "data") == 2
    assert len(read_sink(tmp_path / "data", "lines")) == 2
    assert len(read_state(tmp_path / "data", "counts")) == 2


@pytest.mark.integration
def test_as_a_record_of_kafka(kafka_broker, planted, tmp_path):
    topic = kafka_broker.make_topic()
    producer = Producer({"bootstrap.servers": kafka_broker.bootstrap})
    producer.produce(topic, planted, key=planted, headers={"pickled": planted})
    assert producer.flush(30) == 0
    fields = ("key", "value", "headers")
    spout = TransactionalKafkaSpout(topic, kafka_broker.bootstrap, fields=fields, key="bytes", value="bytes")
    builder = TransactionalTopologyBuilder("canary", "records", spout)
    builder.set_bolt("keep", DeltaSink("rows", {"key": bytes, "value": bytes})).global_grouping("records")
    go(builder.build_topology(), tmp_path / "data")
    assert read_sink(tmp_path / "data", "rows").select(["key", "value"]).to_pylist() == [
        {"key": planted, "value": planted}
    ]


@pytest.mark.integration
def test_as_any_node_of_zookeeper(zookeeper_server, planted, bases, tmp_path):
    hosts, _, chroot = zookeeper_server.new_chroot().partition("/")
    made, ledger = topology(bases / "words.txt"), f"zookeeper:{hosts}/{chroot}"
    go(made, tmp_path / "data", ledger=ledger, settings={"max_spout_pending": 1})
    client = KazooClient(zookeeper_server.hosts)
    client.start(timeout=10)
    try:
        nodes = [path for path in below(client, f"/{chroot}") if client.get(path)[0]]
        assert len(nodes) > 5
        for path in nodes:
            before = client.get(path)[0]
            client.set(path, planted)
            use(bases, tmp_path / "data")
            client.set(path, before)
    finally:
        client.stop()
        client.close()
    assert go(made, tmp_path / "data") == len(WORDS)


def below(client: KazooClient, path: str) -> Iterator[str]:
    yield path
    for name in client.get_children(path):
        yield from below(client, f"{path}/{name}")


UNPICKLERS = {"pickle", "cloudpickle", "marshal", "yaml", "dill", "shelve"}
MAY = re.compile(rf"\b({'|'.join(UNPICKLERS)})\b|\b(eval|exec|compile|__import__)\(")
PICKLED_BY_US = {"engine/spark.py", "engine/program.py", "testing/executors/batch_bolt_executor.py"}
"""Places that load functions pickled by this process or its driver, which were never on a disk."""


def may_run_code(node: ast.AST) -> bool:
    """Return whether the node is a call that executes its argument as code."""
    if not isinstance(node, ast.Call):
        return False
    called = node.func
    if isinstance(called, ast.Name):
        return called.id in ("eval", "exec", "compile", "__import__")
    if not isinstance(called, ast.Attribute) or not isinstance(called.value, ast.Name):
        return False
    return called.value.id in UNPICKLERS and not called.attr.startswith("dump")


def test_no_code_of_txstorm_loads_what_could_run():
    found = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if MAY.search(text := path.read_text(encoding="utf-8")) and any(map(may_run_code, ast.walk(ast.parse(text))))
    }
    assert found == PICKLED_BY_US
