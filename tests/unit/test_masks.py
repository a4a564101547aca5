"""Masks: what is shown and stored of texts that can hold a password."""

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from topology_samples import word_count

from txstorm.books.origin import origin_of
from txstorm.clients.redis.connection import RedisAddress
from txstorm.clients.zookeeper.operations import ZooKeeperOptions
from txstorm.joins.stores.redis_store import RedisStore
from txstorm.joins.stores.rest_store import RestStore
from txstorm.masks import masked_text, masked_url
from txstorm.sinks import KafkaSink
from txstorm.spouts import TransactionalKafkaSpout
from txstorm.topology.settings import Settings


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("redis://h:1/0", "redis://h:1/0"),
        ("redis://u:secret@h:1/0", "redis://…@h:1/0"),
        ("redis://secret@h", "redis://…@h"),
        ("redis://h?password=secret", "redis://h?…"),
        ("redis://h?password=a@secret", "redis://…"),
        ("redis://:se?cret@h", "redis://…"),
        ("redis://:s@ecret@h", "redis://…@h"),
        ("https://h/path#secret", "https://h/path#…"),
        ("u:secret@h:2181", "…@h:2181"),
        ("delta:s3://u:secret@bucket/a", "delta:s3://…@bucket/a"),
        ("abfs://container@account/a", "abfs://container@account/a"),
        ("somebody@example.org", "somebody@example.org"),
        ("host=h password='secret word' user=u", "host=h password=… user=u"),
        ("jdbc:sqlserver://h:1;user=u;password=secret", "jdbc:sqlserver://h:1;user=u;password=…"),
        ("sb://h/;SharedAccessKey=secret=;EntityPath=p", "sb://h/;SharedAccessKey=…;EntityPath=p"),
        ('{"password": "se\\"cret", "port": 1}', '{"password": …, "port": 1}'),
        ("http://auth:8080/path", "http://auth:8080/path"),
    ],
)
def test_urls_are_shown_without_user_info_and_query(text, shown):
    assert masked_url(text) == shown


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ("('clicks', 2)", "('clicks', 2)"),
        ("('clicks', 2, 'secret')", "('clicks', 2, '…')"),
        ("('clicks', url='redis://:secret@h/0')", "('clicks', url='redis://…@h/0')"),
        ("('clicks', api_key='secret', key='user')", "('clicks', api_key='…', key='user')"),
        (
            "({'sasl.password': 'secret', 'hosts': ['http://h?t=secret']})",
            "({'sasl.password': '…', 'hosts': ['http://h?…']})",
        ),
        (
            "([('sasl.password', 'secret')], dsn='pwd=secret', **{'token': 'secret'})",
            "([('sasl.password', '…')], dsn='pwd=…', **{'token': '…'})",
        ),
        ("('clicks', 2, None, ('token', 'secret'))", "('clicks', 2, None, ('token', '…'))"),
        ("(open('secret'))", "(…)"),
        ("(", "(…)"),
        ("", ""),
    ],
)
def test_the_recorded_name_of_the_code_has_no_secrets(monkeypatch, given, stored):
    """By keyword, by position, in a dict, in a URL; the ledger can be read by everybody who may read the directory."""
    module = ModuleType("made_here")
    module.make = lambda name, count=1, password=None, *rest, **more: None
    monkeypatch.setitem(sys.modules, "made_here", module)
    assert origin_of(word_count(), f"made_here:make{given}").target == f"made_here:make{stored}"


MARK = "S3CRET"
ARGUMENTS = ["'Bearer S3CRET'", "'Basic S3CRET='", "['Token S3CRET']", "{'Authorization': 'S3CRET'}"]
ARGUMENTS += ["'authorization: Bearer S3CRET'", '\'Digest username="u", response="S3CRET"\'', "'X-Api-Key: S3CRET'"]
ARGUMENTS += ["'--password S3CRET'", "['--token', 'S3CRET', 'a']", "'sk-live-S3CRET-0123456789'"]
ARGUMENTS += ["'ghp_S3CRETS3CRETS3CRET12'", "'xoxb-1-S3CRET'", "'eyJS3CRETS3CRET.eyJz.c'", "b'Bearer S3CRET'"]
ARGUMENTS += ["'-----BEGIN PRIVATE KEY-----\\nS3CRET'", "'jdbc:postgresql://u:S3CRET@h/db'", "'https://h/?sig=S3CRET'"]
ARGUMENTS += ["'u:S3CRET@h'", "('token', 'S3CRET')", "'host=h password=S3CRET'", "sk_pat='S3CRET'", "jwt='S3CRET'"]
ARGUMENTS += ["cookie='S3CRET'", "url='redis://S3CRET@h'"]
MODULE = """
from txstorm import BasicBolt, TransactionalTopologyBuilder
from txstorm.spouts import MemoryTransactionalSpout

class Failing(BasicBolt):
    fields = ("n",)
    def __init__(self, given, more):
        self.given, self.more = given, more
    def execute(self, tuple, collector):
        raise ValueError(f"refused by redis://:S3CRET@h/0 with Authorization: Bearer S3CRET, password='S3CRET'")

def make(*given, **more):
    builder = TransactionalTopologyBuilder("t", "source", MemoryTransactionalSpout([[1, 2]], "n", 1))
    builder.set_bolt("b", Failing(given, more)).shuffle_grouping("source")
    return builder.build_topology()
"""


@pytest.mark.parametrize("policy", ["fail_topology", "dead_letter"])
def test_no_file_log_or_command_has_a_secret_of_arguments_and_errors(
    policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Ledger, tables, dead letters and journal; status, progress, errors and logs, as text and as JSON."""
    name = f"masked_{policy}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    ordered = sorted(ARGUMENTS, key=lambda one: "=" in one.partition("'")[0])
    target, data_dir = f"{name}:make({', '.join(ordered)})", tmp_path / "data"
    run = ("run", target, "--engine", "local", "--data-dir", data_dir, "--available-now", "--journal", tmp_path / "j")
    shown = [command(*run, "--set", f"on_error={policy}", "--set", "max_retries=0", "--json", "--log-level", "debug")]
    shown += [command(*run, "--debug"), command("run", f"{name}:make('Bearer S3CRET', open)", "--data-dir", data_dir)]
    shown += [
        command(one, data_dir, *more) for one in ("status", "history", "dead-letters") for more in ((), ("--json",))
    ]
    shown += [command("replay", data_dir, "1"), command("describe", target)]
    assert "refused by redis://…@h/0" in str(shown)
    found = [line for one in shown for line in f"{one.out}\n{one.err}".splitlines() if MARK in line]
    assert found == []
    files = [path for path in data_dir.rglob("*") if path.is_file()] + [tmp_path / "j"]
    assert [path for path in files if MARK.encode() in path.read_bytes()] == []


def test_no_repr_has_a_secret() -> None:
    conf = json.dumps({"jedisPoolConfig": {"password": MARK}})
    kafka = {"sasl.password": MARK}
    made = [
        *(Settings(state_provider="redis", state_provider_config=conf), Settings(ledger=None)),
        *(RedisAddress("h", password=MARK), RedisStore(f"redis://:{MARK}@h"), RestStore("https://h/s", token=MARK)),
        ZooKeeperOptions(auth=f"u:{MARK}", key_password=MARK),
        *(TransactionalKafkaSpout("t", "h:1", settings=kafka), KafkaSink("s", "t", "h:1", settings=kafka)),
    ]
    for one in made:
        assert MARK not in f"{one!r} {one} {vars(one).keys()}"


def test_words_of_errors_are_not_taken_for_secrets() -> None:
    for text in (
        "Unexpected token: 5 at 1:4",
        "the bearer of news",
        "a basic idea",
        "sk-learn is missing",
        "another batch (digest 3f9ab2, expected 77c0de); table t: digest 3f9ab2",
        "Token that every request must have (token 5 of 6): give --token or TXSTORM_STORE_TOKEN",
    ):
        assert masked_text(text) == text
