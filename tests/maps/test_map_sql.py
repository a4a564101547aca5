"""SQLAlchemy backend: statements of bounded size, marks, and user errors."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa

from txstorm.api.external import MapMark, MapRow
from txstorm.clients.sql import CHUNK, SqlAlchemyBackend
from txstorm.errors import InputError, MissingDependency, StateError

MARK = MapMark("topology", "incarnation", 1, 0, 5, "content")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'own.db'}"


@pytest.fixture
def statements() -> list[tuple[str, int]]:
    """Record the first word and the number of parameters of every statement that any SQLAlchemy engine executes."""
    seen: list[tuple[str, int]] = []

    def note(connection, cursor, statement, parameters, context, executemany):
        seen.append((statement.split()[0], len(parameters)))

    sa.event.listen(sa.Engine, "before_cursor_execute", note)
    yield seen
    sa.event.remove(sa.Engine, "before_cursor_execute", note)


def test_many_keys_need_few_statements_of_bounded_size(url, statements):
    backend = SqlAlchemyBackend(url, "counts")
    rows = {f"k{i}": MapRow(i, 1) for i in range(2 * CHUNK + 1)}
    backend.mark()
    statements.clear()
    assert backend.put_marked(rows, None, MARK)
    assert [word for word, _ in statements] == ["INSERT", *["DELETE"] * 4, *["INSERT"] * 3]
    assert max(size for _, size in statements) <= CHUNK
    statements.clear()
    assert [row.value for row in backend.multi_get(list(rows))] == list(range(len(rows)))
    assert [word for word, _ in statements] == ["SELECT"] * 3


def test_a_mark_advances_only_from_its_expected_value(backend):
    assert backend.mark() is None
    assert not backend.put_marked({"a": MapRow(1, 5)}, MARK, replace(MARK, txid=6))
    assert backend.put_marked({"a": MapRow(1, 5)}, None, MARK)
    assert backend.mark() == MARK
    assert not backend.put_marked({"a": MapRow(2, 6)}, None, replace(MARK, txid=6))
    for name, other in (("epoch", 2), ("timeline", 1), ("txid", 4), ("content", "x"), ("incarnation", "y")):
        stale = replace(MARK, **{name: other})
        assert not backend.put_marked({"a": MapRow(2, 6)}, stale, replace(MARK, txid=6))
    assert backend.multi_get(["a", "b"]) == [MapRow(1, 5), None]
    assert backend.put_marked({"a": MapRow(2, 6, 0, 1), "b": None}, MARK, replace(MARK, txid=6))
    assert backend.multi_get(["a"]) == [MapRow(2, 6, 0, 1)]


def test_maps_in_one_database_are_isolated(make_backend):
    one, two = make_backend(), make_backend()
    assert one.put_marked({"a": MapRow(1, 5)}, None, MARK)
    assert two.mark() is None
    assert two.multi_get(["a"]) == [None]


def test_columns_of_the_map_table_in_sql(url):
    backend = SqlAlchemyBackend(url, "counts")
    backend.multi_put({'"cat"': MapRow({"n": [1, 2]}, 7, 0, {"n": [1]}), '"dog"': MapRow(None, 7, 0, 3)})
    with sa.create_engine(url).connect() as connection:
        found = connection.execute(sa.text("SELECT key, value, prev, timeline, txid, removed FROM counts ORDER BY key"))
        assert [tuple(row) for row in found] == [
            ('"cat"', '{"n": [1, 2]}', '{"n": [1]}', 0, 7, None),
            ('"dog"', None, "3", 0, 7, 7),
        ]


def test_the_url_can_be_read_from_the_environment_on_first_use(url, monkeypatch):
    monkeypatch.delenv("OWN_DB", raising=False)
    backend = SqlAlchemyBackend.from_env("OWN_DB", "counts")
    message = r"'counts': expected a database URL in the environment variable OWN_DB; set it"
    with pytest.raises(InputError, match=message):
        backend.multi_get(["a"])
    monkeypatch.setenv("OWN_DB", url)
    assert backend.multi_get(["a"]) == [None]


@pytest.mark.parametrize("wrong", ["nonsense", "sqlite://", "sqlite:///:memory:"])
def test_an_unsuitable_url_is_rejected(wrong):
    with pytest.raises(InputError, match=r"database URL|in memory is another one in every thread"):
        SqlAlchemyBackend(wrong, "counts")


def test_a_missing_database_driver_is_reported():
    with pytest.raises(MissingDependency, match="pymysql is not installed"):
        SqlAlchemyBackend("mysql+pymysql://u:secret@nowhere/db", "counts").mark()


def test_errors_never_contain_the_password(postgres):
    backend = SqlAlchemyBackend(f"postgresql+psycopg://txstorm:secret@127.0.0.1:1/{postgres.port}", "counts")
    with pytest.raises(ConnectionError, match="table 'counts'") as refused:
        backend.mark()
    assert "secret" not in str(refused.value)


def test_a_table_with_other_columns_is_rejected(url):
    with sa.create_engine(url).begin() as connection:
        connection.execute(sa.text("CREATE TABLE counts (id TEXT, n INT)"))
    with pytest.raises(StateError, match=r"table 'counts' exists, but has no columns key, value, .*another table"):
        SqlAlchemyBackend(url, "counts").mark()


def test_without_sqlalchemy_the_error_has_install_instructions_and_the_rest_works(tmp_path):
    code = """
import json, sys
sys.modules["sqlalchemy"] = None
import txstorm, txstorm.state.external.targets
from txstorm import *
try:
    import txstorm.clients.sql
except txstorm.TxstormError as error:
    print(json.dumps(str(error)))
"""
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == "sqlalchemy is not installed; run: pip install 'txstorm[sql]'"
