"""Masks: what is shown and stored of texts that can hold a password."""

import sys
from types import ModuleType

import pytest
from topology_samples import word_count

from txstorm.books.origin import origin_of
from txstorm.masks import masked_url


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
