"""Configurations of ready-made joins: values, and every fault, all of them at once."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from txstorm.errors import InputError
from txstorm.joins import JoinService

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


def read(tmp_path: Path, **parts: str) -> JoinService:
    path = tmp_path / "clicks.toml"
    path.write_text(VALID.format(**{**dict.fromkeys(("top", "left", "right", "join", "more"), ""), **parts}))
    return JoinService.read(path)


def faults(tmp_path: Path, **parts: str) -> list[str]:
    with pytest.raises(InputError) as caught:
        read(tmp_path, **parts)
    first, *lines = str(caught.value).splitlines()
    number = len(lines)
    assert first == f"{tmp_path / 'clicks.toml'}: {number} error{'s' * (number != 1)}"
    return [line.strip() for line in lines]


def test_the_example_is_valid_and_shows_every_option():
    text = EXAMPLE.read_text(encoding="utf-8")
    config = JoinService.read(EXAMPLE)
    assert (config.join.how, config.join.after, config.right.lag) == (
        "left",
        timedelta(minutes=10),
        timedelta(seconds=5),
    )
    for part in (config, config.left, config.join, config.sink):
        assert [name for name in type(part).model_fields if name not in text] == []


def test_the_commented_options_of_the_example_are_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("STORE_TOKEN", "secret")
    monkeypatch.setenv("KAFKA_PASSWORD", "secret, too")
    text = re.sub(r'(?m)^# (?=[\["]|\w+ = )', "", EXAMPLE.read_text(encoding="utf-8"))
    text = text.replace('variant = "state"', 'variant = "redis"').replace('unmatched_right = "orphans"', "")
    (tmp_path / "all.toml").write_text(text)
    config = JoinService.read(tmp_path / "all.toml")
    assert config.store is not None and config.store.token == "secret"
    assert config.kafka["sasl.password"] == "secret, too"
    assert config.left.idle == timedelta(minutes=5)


def test_values(tmp_path: Path):
    config = read(
        tmp_path,
        left='lag = "1.5 s"\nstart = 2026-01-31T12:00:00Z',
        join='after = "250 ms"\nhow = "inner"',
        more="[settings]\nmax_spout_pending = 4",
    )
    assert config.left.lag == timedelta(seconds=1.5)
    assert config.left.start == datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert config.join.after == timedelta(milliseconds=250)
    assert config.right.side("right").key == ("view",)
    assert config.settings == {"max_spout_pending": 4}


def test_fields_of_results(tmp_path: Path):
    """A field that both sides have carries the name of its side."""
    expected = {"left_view": int, "ad": str, "left_at": int, "click": int, "right_view": int, "right_at": datetime}
    assert read(tmp_path).columns() == expected
    chosen = read(tmp_path, join='select = ["right:at", "left:ad"]')
    assert chosen.columns() == {"at": datetime, "ad": str}
    assert read(tmp_path, join='how = "anti"').columns() == {"view": int, "ad": str, "at": int}


ONE = [
    ({"top": 'varient = "state"'}, "varient: unknown (did you mean 'variant'?)"),
    ({"top": "parallelism = 0"}, "parallelism: input should be greater than or equal to 1, got 0"),
    ({"left": "lag = 5"}, 'left.lag: expected a duration such as "10 min" (units: us, ms, s, min, h, d), got 5'),
    ({"left": 'lag = "-1 s"'}, "left.lag: expected a duration of 0 or more, got '-1 s'"),
    ({"left": 'id = "vew"'}, "left.id: 'vew' is none of the fields view, ad, at (did you mean 'view'?)"),
    ({"left": 'start = "now"'}, "left.start: expected 'earliest', 'latest', or a time with a zone"),
    ({"left": "start = 2026-01-31T12:00:00"}, "left.start: expected 'earliest', 'latest', or a time with a zone"),
    ({"join": 'how = "outer"'}, "join.how: input should be 'inner', 'left', 'right', 'full', 'semi' or 'anti'"),
    ({"join": 'after = "-1 s"'}, "join.after: the bounds are inverted: before + after is negative"),
    ({"join": 'select = ["view"]'}, "join: select: expected left:FIELD or right:FIELD, got 'view'"),
    ({"join": 'select = ["left:vew"]'}, "join: select: left has no field 'vew' (did you mean 'view'?); it has view"),
    ({"more": '[store]\nurl = "redis://h"\nretain = "1 h"'}, "store: variant = 'state' needs no store"),
    ({"more": '[sink]\nname = "a b"'}, "sink.name: sink 'a b': a name is a letter followed by"),
    ({"more": '[sink]\nunmatched_left = "joined"'}, "sink.unmatched_left: 'joined' has other results already"),
    ({"more": "[settings]\non_eror = 1"}, "settings: unknown setting 'on_eror' (did you mean 'on_error'?)"),
    ({"more": '[kafka]\n"sasl.password" = "$NO_SUCH"'}, "kafka.sasl.password: the environment variable NO_SUCH is not"),
]


@pytest.mark.parametrize(("parts", "expected"), ONE, ids=lambda one: None if isinstance(one, dict) else one[:30])
def test_one_fault(tmp_path: Path, parts: dict[str, str], expected: str):
    (fault,) = faults(tmp_path, **parts)
    assert fault.startswith(expected)


def test_faults_of_a_store(tmp_path: Path):
    assert faults(tmp_path, top='variant = "redis"') == [
        "right: id is missing: a store tells repeated rows from new ones by it",
        "store: missing: variant = 'redis' needs a section [store] with url and retain",
    ]
    wrong = faults(
        tmp_path,
        top='variant = "rest"',
        right='id = "click"',
        join='how = "full"',
        more='[store]\nurl = "redis://h"\nretain = "1 h"\n[sink]\nunmatched_right = "u"',
    )
    assert [fault.split(":")[0] for fault in wrong] == ["join", "store", "sink"]


def test_rows_of_a_store_that_expire_before_their_left_rows(tmp_path: Path):
    parts = {"top": 'variant = "redis"', "right": 'id = "click"', "left": "", "join": ""}
    path = tmp_path / "clicks.toml"
    text = VALID.format(**parts, more='[store]\nurl = "redis://h"\nretain = "1 h"')
    path.write_text(text.replace('before = "0 s"', 'before = "61 min"'))
    with pytest.raises(InputError, match="1 error\n  store: retain: right rows would expire before the left rows"):
        JoinService.read(path)
    path.write_text(text.replace('before = "0 s"', 'before = "60 min"'))
    JoinService.read(path)


def test_keys_of_other_types_can_never_match(tmp_path: Path):
    path = tmp_path / "clicks.toml"
    filled = dict.fromkeys(("top", "left", "right", "join", "more"), "")
    path.write_text(VALID.format(**filled).replace('key = "view"', 'key = "ad"'))
    with pytest.raises(InputError, match=r"right: key \['view'\] has the types \['int'\], that of left \['ad'\] has"):
        JoinService.read(path)


@pytest.mark.parametrize(("content", "reason"), [(None, "No such file"), ("a = ", "not TOML: Invalid value")])
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
