"""Configurations of ready-made joins: values, and every fault, all of them at once; parsing of records."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pytest

from txstorm.cli.commands.stores_and_delay import _settings
from txstorm.errors import InputError
from txstorm.joins import JoinService
from txstorm.joins.service.ready_made import JsonFields

EXAMPLE = Path(__file__).resolve().parents[3] / "jobs" / "data" / "stream_join.toml"

VALID = """
name = "clicks"
servers = "127.0.0.1:9092"
{top}
[left]
topic = "views"
fields = {{ view = "int", ad = "str", at = "int" }}
key = "view"
time = "at"
{left}
[right]
topic = "clicks"
fields = {{ click = "int", view = "int", at = "datetime" }}
key = ["view"]
time = "at"
{right}
[join]
before = "0 s"
{join}
{more}
"""


def read(tmp_path: Path, *, changes: Mapping[str, str] = MappingProxyType({}), **parts: str) -> JoinService:
    """Read the valid configuration with `parts` filled in, and with texts of it replaced by others."""
    text = VALID.format(**{**dict.fromkeys(("top", "left", "right", "join", "more"), ""), **parts})
    for old, new in changes.items():
        text = text.replace(old, new)
    path = tmp_path / "clicks.toml"
    path.write_text(text, "utf-8")
    return JoinService.read(path)


def faults(tmp_path: Path, **parts: Any) -> list[str]:
    with pytest.raises(InputError) as caught:
        read(tmp_path, **parts)
    first, *lines = str(caught.value).splitlines()
    number = len(lines)
    assert first == f"{tmp_path / 'clicks.toml'}: {number} error{'s' * (number != 1)}"
    named = [re.fullmatch(r"  line \d+: (.*)", line) for line in lines]
    return [one[1] if one else line.strip() for one, line in zip(named, lines, strict=True)]


def test_the_example_is_valid_and_shows_every_option():
    text = EXAMPLE.read_text(encoding="utf-8")
    config = JoinService.read(EXAMPLE)
    found = (config.join.how, config.join.after, config.right.lag)
    assert found == ("left", timedelta(minutes=10), timedelta(seconds=5))
    for part in (config, config.left, config.join, config.sink):
        assert [name for name in type(part).model_fields if name not in text] == []


@pytest.mark.parametrize(
    ("variant", "url", "other"), [("redis", "redis://127.0.0.1:6379/0", "token"), ("rest", "http://h:1", "prefix")]
)
def test_the_commented_options_of_the_example_are_valid(tmp_path, monkeypatch, variant, url, other):
    monkeypatch.setenv("STORE_TOKEN", "secret")
    monkeypatch.setenv("KAFKA_PASSWORD", "secret, too")
    text = re.sub(r'(?m)^# (?=[\["]|\w+ = )', "", EXAMPLE.read_text(encoding="utf-8"))
    text = text.replace('variant = "state"', f'variant = "{variant}"').replace('unmatched_right = "orphans"', "")
    text = text.replace("redis://127.0.0.1:6379/0", url).replace('type = "delta"', 'type = "kafka"')
    (tmp_path / "all.toml").write_text(re.sub(f"(?m)^{other} = .*$", "", text))
    config = JoinService.read(tmp_path / "all.toml")
    assert config.store is not None and config.store.token in ("secret", None)
    assert config.kafka["sasl.password"] == "secret, too"
    assert (config.left.idle, config.sink.key) == (timedelta(minutes=5), "ad")


def test_values_spellings_and_fields_of_results(tmp_path: Path):
    config = read(
        tmp_path,
        left='lag = "1.5 s"\nstart = 2026-01-31T12:00:00Z',
        join='after = "250 ms"\nhow = "inner"',
        more="[settings]\nmax_spout_pending = 4",
    )
    assert config.left.lag == timedelta(seconds=1.5)
    assert config.left.start == datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert config.join.after == timedelta(milliseconds=250)
    assert config.right.side("right").made().key == ("view",)
    assert config.settings == {"max_spout_pending": 4}
    client = '[kafka]\nsocket.keepalive.enable = true\n"socket.timeout.ms" = 6000'
    changes = {"\nname": "\ufeff\nname", 'before = "0 s"': 'before = "-1 min"'}
    config = read(tmp_path, changes=changes, join='how = "left_outer"\nafter = "1 h"', more=client)
    assert (config.join.how, config.join.before) == ("left", timedelta(minutes=-1))
    assert config.kafka == {"socket.keepalive.enable": "true", "socket.timeout.ms": "6000"}
    config.topology()
    expected = {"left_view": int, "ad": str, "left_at": int, "click": int, "right_view": int, "right_at": datetime}
    assert read(tmp_path).columns() == expected
    chosen = read(tmp_path, join='select = ["right:at", "left:ad"]')
    assert chosen.columns() == {"at": datetime, "ad": str}
    assert read(tmp_path, join='how = "anti"').columns() == {"view": int, "ad": str, "at": int}


DELTA = '[sink]\nname = "joined"\n'
ONE = [
    (
        {"changes": {"127.0.0.1:9092": "kafka"}},
        "servers: expected HOST:PORT, or several separated by commas, got 'kafka'",
    ),
    ({"changes": {"127.0.0.1:9092": "k:1,u:secret@k"}}, "servers: expected HOST:PORT"),
    ({"changes": {"127.0.0.1:9092": "k:1,k:70000"}}, "servers: expected HOST:PORT"),
    ({"top": "parallelism = 40000"}, "parallelism: expected at most 32768, got 40000"),
    ({"right": 'unit = "s"'}, "right.unit: field 'at' is a datetime, which needs no unit"),
    ({"changes": {'ad = "str"': 'ad = "str", AD = "int"'}}, "left: fields 'ad' and 'AD' differ only in case"),
    (
        {
            "join": 'select = ["left:at", "right:at", "left:ad"]',
            "changes": {"ad =": "LEFT_at =", "left:ad": "left:LEFT_at"},
        },
        "sink: joined: fields 'left_at' and 'LEFT_at' differ",
    ),
    ({"more": '[kafka]\nplugin.library.paths = "secret.so"'}, "kafka.plugin.library.paths: it loads code"),
    ({"more": '[kafka]\n"sasl.kerberos.kinit.cmd" = "secret"'}, "kafka.sasl.kerberos.kinit.cmd: it loads code"),
    ({"more": '[kafka]\nssl.engine.location = "secret.so"'}, "kafka.ssl.engine.location: it loads code"),
    ({"more": '[kafka]\n"ssl.providers" = "secret"'}, "kafka.ssl.providers: it loads code"),
    ({"more": '[settings]\nstate_provider = "secret:Provider"'}, "settings.state_provider: a class is code"),
    ({"top": 'varient = "state"'}, "varient: unknown (did you mean 'variant'?)"),
    ({"top": "parallelism = 0"}, "parallelism: expected at least 1, got 0"),
    ({"left": "lag = 5"}, 'left.lag: expected a duration such as "10 min" (units: us, ms, s, min, h, d), got 5'),
    ({"left": 'lag = "-1 s"'}, "left.lag: expected a duration of 0 or more, got '-1 s'"),
    ({"left": 'id = "vew"'}, "left.id: 'vew' is none of the fields view, ad, at (did you mean 'view'?)"),
    ({"left": 'start = "now"'}, "left.start: expected 'earliest', 'latest', or a time with a zone"),
    ({"left": "start = 2026-01-31T12:00:00"}, "left.start: expected 'earliest', 'latest', or a time with a zone"),
    ({"join": 'how = "lefft"'}, "join.how: expected 'inner', 'left', 'right', 'full', 'semi' or 'anti', got 'lefft'"),
    ({"join": 'after = "-1 s"'}, "join.after: the bounds are inverted: before + after is negative"),
    ({"join": 'select = ["view"]'}, "join.select: expected 'stream:field', such as 'left:view', got 'view'"),
    ({"join": 'select = ["left:vew"]'}, "join.select: 'left:vew': the side has no field 'vew' (did you mean 'view'?)"),
    ({"join": 'select = ["left:ad", "left:ad"]'}, "join.select: the results have two fields"),
    ({"join": 'how = "semi"\nselect = ["right:at"]'}, "join.select: 'right:at': the results have left fields only"),
    ({"join": 'after = "99999999999999 d"'}, "join.after: expected a duration shorter than 9999 years, got '9999"),
    ({"left": 'idle = "0 s"'}, "left.idle: expected a duration longer than 0, got '0 s'"),
    ({"left": 'grace = "1 s"'}, "left: grace is for the right side"),
    ({"left": 'how = "left"'}, "left.how: unknown here; it belongs to [join]"),
    ({"join": "parallelism = 3"}, "join.parallelism: unknown here; it belongs to the options above the first section"),
    ({"top": 'store = "redis://u:secret@h"'}, "store: expected a section"),
    ({"more": '[store]\nurl = "redis://h"\nretain = "1 h"'}, "store: variant = 'state' needs no store"),
    ({"more": '[sink]\nname = "a b"'}, "sink.name: sink 'a b': a name is a letter followed by"),
    ({"more": DELTA + 'unmatched_left = "joined"'}, "sink.unmatched_left: 'joined' has other results already"),
    ({"more": DELTA + 'unmatched_left = "Joined"'}, "sink: tables 'joined' and 'Joined' differ only in case"),
    ({"more": '[sink]\ntype = "kafka"'}, "sink.name: missing"),
    ({"more": DELTA + 'key = "ad"'}, "sink.key: rows of a table have none; it is for type = 'kafka'"),
    (
        {"more": '[sink]\ntype = "kafka"\nname = "joined"\nkey = "add"'},
        "sink.key: the results have no field 'add' (did you mean 'ad'?)",
    ),
    ({"more": '[sink]\ntype = "kafka"\nname = "views"'}, "sink: the join reads topic 'views', so it cannot write to"),
    ({"more": '[sink]\ntype = "kafka"\nname = "a b"'}, "sink.name: expected a topic, at most 249 letters"),
    ({"more": '[kafka]\n"group.id" = "g"'}, "kafka.group.id: the client setting 'group.id' is txstorm's own"),
    ({"more": '[kafka]\n"bootstrap.servers" = "h:1"'}, "kafka.bootstrap.servers: give the brokers as servers"),
    ({"more": '[kafka]\n"sasl.pasword" = "x"'}, "kafka.sasl.pasword: the client settings"),
    ({"more": '[kafka]\n"default.topic.config" = "x"'}, "kafka.default.topic.config: the client settings"),
    ({"more": "[settings]\non_eror = 1"}, "settings: unknown setting 'on_eror' (did you mean 'on_error'?)"),
    ({"more": '[kafka]\n"sasl.password" = "$NO_SUCH"'}, "kafka.sasl.password: the environment variable NO_SUCH is not"),
]


@pytest.mark.parametrize(("parts", "expected"), ONE, ids=lambda one: None if isinstance(one, dict) else one[:30])
def test_one_fault(tmp_path: Path, parts: dict[str, str], expected: str):
    (fault,) = faults(tmp_path, **parts)
    assert fault.startswith(expected)
    assert "secret" not in fault


def test_settings_that_load_code_are_refused_before_a_client_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Of a configuration of a join, and of the file with client settings of a command."""
    made = list[Any]()
    monkeypatch.setattr("confluent_kafka.Consumer", lambda *settings, **_: made.append(settings))
    (tmp_path / "client").write_text("# none\nssl.engine.id = x\n plugin.library.paths=secret.so\n")
    for check in (
        lambda: read(tmp_path, more='[kafka]\n"plugin.library.paths" = "secret.so"\n"client.id" = "x"'),
        lambda: _settings(tmp_path / "client"),
    ):
        with pytest.raises(InputError, match=r"plugin\.library\.paths: it loads code or runs a program") as caught:
            check()
        assert "secret" not in str(caught.value)
    assert made == []


def test_faults_do_not_hide_each_other(tmp_path: Path):
    changes = {'key = "view"': 'key = ["vew", "add", "ad", "ad"]', "127.0.0.1:9092": "kafka"}
    client = '[kafka]\n"group.id" = "g"\n"sasl.pasword" = "secret"\n"security.protocol" = "secret"'
    names = "group.id", "sasl.pasword", "security.protocol"
    found = faults(tmp_path, changes=changes, more=client)
    assert [fault.split(":")[0] for fault in found] == [
        "servers",
        *["left.key"] * 3,
        *(f"kafka.{name}" for name in names),
    ]
    assert not any("secret" in fault for fault in found)
    found = faults(tmp_path, changes={'ad = "str"': '_a = "str", "" = "str", partition = "str"'})
    assert [fault.split(":")[0] for fault in found] == ["left.fields"] * 3
    chosen = 'how = "rihgt"\nselect = ["left:vew", "rigth:at"]'
    found = [fault.split(":")[0] for fault in faults(tmp_path, left='unit = "min"', join=chosen)]
    assert found == ["left.unit", "join.how", "join.select", "join.select"]


def test_faults_of_a_store_and_options_that_its_variant_does_not_have(tmp_path: Path):
    assert faults(tmp_path, top='variant = "redis"') == [
        "store: missing: variant = 'redis' needs a section [store] with url and retain",
        "right: id is missing: a store tells repeated rows from new ones by it",
    ]
    wrong = faults(
        tmp_path,
        top='variant = "rest"',
        right='id = "click"',
        join='how = "full"',
        more='[store]\nurl = "redis://h"\nretain = "1 h"\n[sink]\nname = "n"\nunmatched_right = "u"',
    )
    assert [fault.split(":")[0] for fault in wrong] == ["join", "store.url", "sink"]
    for variant, store, expected in [
        ("redis", 'url = "redis://h"\ntoken = "t"', "store.token: it is for variant = 'rest'"),
        ("rest", 'url = "http://h"\nprefix = "p"', "store.prefix: it is for variant = 'redis'"),
        ("rest", 'url = "http://h/?password=secret"', "store: join store: URL 'http://h/?…': it has a query"),
        ("redis", 'url = "redis://h/?password=a@secret"', "store: Redis: URL 'redis://…'"),
        ("redis", 'url = "redis://u:secret@h:one"', "store: Redis: URL 'redis://…@h:one'"),
    ]:
        more = f'[store]\nretain = "1 h"\n{store}'
        (fault,) = faults(tmp_path, top=f'variant = "{variant}"', right='id = "click"', more=more)
        assert fault.startswith(expected) and "secret" not in fault


def test_bounds_that_a_store_cannot_have_and_keys_that_can_never_match(tmp_path: Path):
    parts = {"top": 'variant = "redis"', "right": 'id = "click"', "more": '[store]\nurl = "redis://h"\nretain = "1 h"'}
    (fault,) = faults(tmp_path, changes={'before = "0 s"': 'before = "61 min"'}, **parts)
    assert fault.startswith("store.retain: right rows would expire before the left rows")
    read(tmp_path, changes={'before = "0 s"': 'before = "60 min"'}, **parts)
    wrong = "\n".join(faults(tmp_path, changes={'key = "view"': 'key = "ad"'}))
    assert "right: key ['view'] has the types ['int'], that of left ['ad'] has" in wrong


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "No such file"),
        ("a = ", "not TOML: Invalid value"),
        ("a = " + "9" * 5_000, "not TOML: Exceeds the limit"),
        ("a = " + "[" * 50_000, "sections or lists are nested more than 20 deep"),
        ("[settings]\na = " + "[" * 30 + "]" * 30, "sections or lists are nested more than 20 deep"),
        ("[kafka]\na" + ".a" * 2_000 + " = 1", "sections or lists are nested more than 20 deep"),
    ],
    ids=["none", "wrong", "digits", "lists", "few lists", "tables"],
)
def test_files_that_cannot_be_read(tmp_path: Path, content: str | None, reason: str):
    path = tmp_path / "clicks.toml"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError, match=rf"clicks\.toml: {reason}"):
        JoinService.read(path)


def test_secrets_are_not_shown(tmp_path: Path):
    store = '[store]\nurl = "password@host"\nretain = "1 h"\ntoken = 17'
    wrong = faults(tmp_path, top='variant = "rest"', right='id = "click"', more=store)
    assert [fault.split(":")[0] for fault in wrong][:2] == ["store.url", "store.token"]
    assert not any("password" in fault or "17" in fault for fault in wrong)
    (fault,) = faults(tmp_path, more='[kafka]\n"security.protocol" = "password"')
    assert 'Invalid value "…" for configuration property "security.protocol"' in fault
    store = '[store]\nurl = "redis://u:password@h"\nretain = "1 h"\n[kafka]\n"sasl.password" = "password"'
    config = read(tmp_path, top='variant = "redis"', right='id = "click"', more=store)
    assert config.kafka and "password" not in repr(config)
    provider = '[settings]\nstate_provider_config = \'{"jedisPoolConfig": {"password": "hunter2"}}\''
    assert "hunter2" not in repr(read(tmp_path, more=provider))
    (fault,) = faults(tmp_path, more=provider.replace("'{", "'" + "[" * 100_000))
    assert fault == "settings: setting state_provider_config: got a str: expected a JSON object"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('{"x": 1.5}', "field 'x': expected int or null, got 1.5"),
        (f'{{"x": {1 << 70}}}', "field 'x': expected int or null: "),
        ('{"at": "2026-01-31T12:00:00"}', "field 'at': expected a time in ISO 8601 with a zone or null: "),
        ("[]", "expected JSON objects"),
        ('{"x":' * 100_000, "expected JSON objects; got a record that is no JSON"),
        (None, "expected JSON objects"),
    ],
)
def test_records_that_cannot_be_parsed(text: str | None, what: str):
    """Errors of `JsonFields`; the values that it parses are tested in `test_json_objects.py`."""
    batch = pa.record_batch({"value": pa.array(['{"x": null}', text]), "partition": [0, 0]})
    with pytest.raises(ValueError, match=re.escape(what)):
        JsonFields({"x": int, "at": datetime}).execute_batch(batch, None)  # type: ignore[arg-type]
