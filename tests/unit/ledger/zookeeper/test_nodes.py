"""Layout of the ledger's paths and values in ZooKeeper, tested without a server."""

import importlib
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txstorm.clients.zookeeper.operations import Change, Create, Node, Remove, Verify, ZooKeeperOptions
from txstorm.errors import ConflictError, InputError, MissingDependency
from txstorm.ledger.credentials import AUTH
from txstorm.ledger.port import ABSENT, Check, Delete, Entry, Put
from txstorm.ledger.zookeeper.location import zookeeper_spec
from txstorm.ledger.zookeeper.nodes import (
    DIRECTORY,
    EPOCH,
    LEASE,
    VALUE,
    WRITERS,
    Known,
    draft,
    entry_name,
    entry_of,
    needed,
    node_data,
    node_name,
    node_path,
)
from txstorm.ledger.zookeeper.open import KEY_PASSWORD, zookeeper_options
from txstorm.topology.settings import Settings

names = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="/\0"), min_size=1)


@given(names)
def test_names_survive_a_round_trip_and_are_valid_in_zookeeper(name: str) -> None:
    node = node_name(name)
    assert entry_name(node) == name
    assert not [
        one for one in node if one < " " or "\x7f" <= one <= "\x9f" or "\ud800" <= one <= "\uf8ff" or one > "\uffef"
    ]
    assert node not in (VALUE, LEASE, EPOCH, WRITERS)


@pytest.mark.parametrize("path", ["coordinator/currtx", "coordinator/meta/17", "user/0/3", "tables/日本"])
def test_storms_paths_are_unchanged(path: str) -> None:
    assert node_path("/transactional/wc", path) == f"/transactional/wc/{path}"


@pytest.mark.parametrize("node", [VALUE, LEASE, EPOCH, WRITERS, "%zz", "%", "%e4%bd", "a%2"])
def test_other_nodes_are_not_entries(node: str) -> None:
    assert entry_name(node) is None


@given(st.binary())
def test_values_survive_a_round_trip_and_differ_from_directories(value: bytes) -> None:
    data = node_data(value)
    assert data != DIRECTORY
    assert entry_of(Node(data, 3, 0, 0, 0)) == Entry(value, 3)
    assert data == value or value.startswith(b"/")


def leaf(version: int, *, children: bool = False) -> Known:
    return Known(version, directory=False, children=children)


FOLDER = Known(0, directory=True, children=True)


def test_puts_expect_the_versions_found_directories_are_respected_and_only_unknown_nodes_read() -> None:
    known = {"/r/a": FOLDER, "/r/a/old": leaf(4)}
    nodes, after = draft("/r", [Put("a/old", b"x"), Put("b/c/new", b"/y"), Check("a/old", 5)], known)
    assert nodes == [
        Change("/r/a/old", b"x", 4),
        Create("/r/b", DIRECTORY),
        Create("/r/b/c", DIRECTORY),
        Create("/r/b/c/new", b"//y"),
        Verify("/r/a/old", 5),
    ]
    assert after["/r/a/old"] == leaf(5)
    assert after["/r/b/c"] == FOLDER
    # An entry at the path of a directory is stored in a child node.
    nodes, _ = draft("/r", [Put("a", b"x", ABSENT), Put("a", b"y", 0), Delete("a", 1)], {"/r/a": FOLDER})
    below = f"/r/a/{VALUE}"
    assert nodes == [Create(below, b"x"), Change(below, b"y", 0), Remove(below, 1)]
    # A deleted entry with children becomes a directory.
    known = {"/r/a": leaf(2, children=True)}
    nodes, after = draft("/r", [Delete("a"), Put("a", b"x", ABSENT)], known)
    assert nodes == [Change("/r/a", DIRECTORY, 2), Create(f"/r/a/{VALUE}", b"x")]
    assert after["/r/a"] == Known(3, directory=True, children=True)
    # Absence is checked by creating and removing the topmost missing node.
    nodes, after = draft("/r", [Delete("a/b/c"), Check("a/x", ABSENT)], {"/r/a": FOLDER})
    assert nodes == [Create("/r/a/b", DIRECTORY), Remove("/r/a/b", 0), Create("/r/a/x", DIRECTORY), Remove("/r/a/x", 0)]
    assert after == {}
    known = {"/r/a": FOLDER}
    assert list(needed("/r", Put("a/b", b"", ABSENT), known, guess=True)) == []
    assert list(needed("/r", Put("a/b", b"", 2), known, guess=True)) == ["/r/a/b"]
    assert list(needed("/r", Delete("a/b"), known, guess=True)) == ["/r/a/b"]
    assert list(needed("/r", Put("a/b", b""), known, guess=False)) == ["/r/a/b"]
    assert list(needed("/r", Put("x/b", b""), known, guess=True)) == ["/r/x"]
    assert list(needed("/r", Check("a", 0), known, guess=True)) == [f"/r/a/{VALUE}"]


@pytest.mark.parametrize("op", [Put("a", b"", 3), Put("a", b"", ABSENT), Delete("a", 1), Check("b", 0), Delete("b", 0)])
def test_an_expectation_that_contradicts_known_nodes_is_a_conflict(op: Put | Delete | Check) -> None:
    with pytest.raises(ConflictError, match="expected"):
        draft("/r", [op], {"/r/a": leaf(2), "/r/b": FOLDER})


def test_storms_settings_locate_the_ledger_secrets_are_not_shown_and_without_kazoo_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = zookeeper_options(Settings(zookeeper_ca=__file__), {AUTH: "me:se:cret", KEY_PASSWORD: "opens"})
    assert (options.auth, options.key_password, options.tls) == ("me:se:cret", "opens", True)
    assert "cret" not in repr(options)
    assert "opens" not in repr(options)
    assert zookeeper_options(Settings(), {}) == ZooKeeperOptions()
    with pytest.raises(InputError, match=r"TXSTORM_ZOOKEEPER_AUTH: expected user:password, got 6 characters") as caught:
        zookeeper_options(Settings(), {AUTH: "secret"})
    assert "secret" not in str(caught.value)
    keys = {"transactional.zookeeper.servers": ["zk1", "zk2:2191"], "transactional.zookeeper.port": 2190}
    settings = Settings.parse({**keys, "transactional.zookeeper.root": "/storm/tx/"})
    assert zookeeper_spec(settings, "word-count") == "zookeeper:zk1:2190,zk2:2191/storm/tx/word-count"
    assert zookeeper_spec(Settings(), "word-count") is None
    only = Settings.parse({"transactional.zookeeper.servers": "zk"})
    assert zookeeper_spec(only, "wc") == "zookeeper:zk:2181/transactional/wc"
    monkeypatch.setitem(sys.modules, "kazoo", None)
    monkeypatch.delitem(sys.modules, "txstorm.clients.zookeeper.session")
    with pytest.raises(MissingDependency, match=r"kazoo is not installed; run: pip install 'txstorm\[zookeeper\]'"):
        importlib.import_module("txstorm.clients.zookeeper.session")


@pytest.mark.parametrize("name", ["zookeeper_ca", "zookeeper_certificate", "zookeeper_key"])
def test_a_missing_certificate_is_named_at_once(name: str) -> None:
    with pytest.raises(InputError, match=rf"setting {name}: expected a PEM file .* got '/no/such.pem'"):
        zookeeper_options(Settings.parse({name: "/no/such.pem"}), {})
