"""Location of a ledger: its name (such as `delta:PATH`), and its record in the data directory."""

import json
from pathlib import Path

import pytest

from txstorm.errors import DataDirectoryError, InputError
from txstorm.ledger import credentials
from txstorm.ledger.location import PLACE_FILE, LedgerSpec, parse_ledger, record_ledger, recorded_ledger
from txstorm.ledger.open import chosen_ledger, local_directory, open_ledger
from txstorm.ledger.zookeeper.location import checked_hosts

BASE = Path("/data/words")


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("sqlite:ledger.db", LedgerSpec("sqlite", "/data/words/ledger.db")),
        ("sqlite:../other/x.db", LedgerSpec("sqlite", "/data/other/x.db")),
        ("sqlite:file:///a%20b/x.db", LedgerSpec("sqlite", "/a b/x.db")),
        ("delta:./control", LedgerSpec("delta", "/data/words/control")),
        ("delta:file:///mnt/control", LedgerSpec("delta", "/mnt/control")),
        ("delta:s3://bucket/control/", LedgerSpec("delta", "s3://bucket/control")),
        ("delta:abfss://box@a.dfs.core.windows.net/l", LedgerSpec("delta", "abfss://box@a.dfs.core.windows.net/l")),
        ("zookeeper:a:2181,b/storm/words", LedgerSpec("zookeeper", "a:2181,b/storm/words")),
        ("zookeeper:[::1]:2181//words/", LedgerSpec("zookeeper", "[::1]:2181/words")),
        ("memory", LedgerSpec("memory")),
        (" memory ", LedgerSpec("memory")),
    ],
)
def test_ledger_names_are_parsed(text, spec):
    assert parse_ledger(text, BASE) == spec
    assert parse_ledger(str(spec), BASE) == spec


def test_hosts_and_chroot():
    spec = parse_ledger("zookeeper:a:2181,b:2182/storm/words")
    assert (spec.hosts, spec.chroot) == ("a:2181,b:2182", "/storm/words")
    assert (parse_ledger("zookeeper:a").hosts, parse_ledger("zookeeper:a").chroot) == ("a", "")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "expected sqlite:PATH | zookeeper:HOSTS/CHROOT | delta:URI | memory; got ''"),
        ("sqlit:x", "did you mean 'sqlite'"),
        ("SQLite:x", "did you mean 'sqlite'"),
        ("zookeper:a/b", "did you mean 'zookeeper'"),
        ("sqlite:", "got nothing after 'sqlite'"),
        ("sqlite:s3://bucket/x.db", "SQLite's locks and syncs hold on local disks only"),
        ("sqlite:/", "/ is a directory; name a file"),
        ("memory:x", "has no location"),
        ("zookeeper:a b/c", "got 'a b' for a server"),
        ("zookeeper:/c", "got '' for a server"),
        ("zookeeper:a/../c", "got the path '/../c'"),
        ("zookeeper:me:secret@a/c", "a password does not belong here"),
        ("delta:s3://key:secret@bucket/x", "credentials do not belong here"),
        ("delta:a\0b", "got a NUL"),
    ],
)
def test_malformed_ledger_names_are_rejected(text, says):
    with pytest.raises(InputError) as caught:
        parse_ledger(text)
    assert says in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "refused",
    [lambda: checked_hosts("me:hunter2@a:2181", 2181), lambda: local_directory("s3://key:hunter2@bucket/x")],
)
def test_a_password_that_is_refused_is_not_repeated(refused):
    with pytest.raises(InputError) as caught:
        refused()
    assert "hunter2" not in str(caught.value)


def test_a_data_directory_records_its_ledger_can_be_moved_and_rejects_another_one(tmp_path):
    data_dir = tmp_path / "data"
    data_dir.mkdir()
    assert recorded_ledger(data_dir) is None
    assert chosen_ledger(data_dir, None) == LedgerSpec("sqlite", str(data_dir / "ledger.db"))
    record_ledger(data_dir, LedgerSpec("delta", str(data_dir / "control")))
    assert json.loads((data_dir / PLACE_FILE).read_text())["ledger"] == "delta:./control"
    moved = data_dir.rename(tmp_path / "moved")
    assert recorded_ledger(moved) == LedgerSpec("delta", str(moved / "control"))
    record_ledger(moved, LedgerSpec("delta", "s3://bucket/control"))
    assert chosen_ledger(moved, None) == chosen_ledger(moved, "delta:s3://bucket/control")
    open_ledger(tmp_path, create=True).close()
    with pytest.raises(InputError) as caught:
        chosen_ledger(tmp_path, f"delta:{tmp_path}/control")
    assert f"uses the ledger sqlite:{tmp_path}/ledger.db, not delta:{tmp_path}/control" in str(caught.value)
    assert chosen_ledger(tmp_path, f"sqlite:{tmp_path}/./ledger.db") == recorded_ledger(tmp_path)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "restore it from a copy"),
        ('{"format": "txstorm-ledger", "version": 2, "ledger": "memory"}', "version 2; update txstorm"),
        ('{"format": "txstorm-ledger", "version": 1, "ledger": "sqlit:x"}', "restore it from a copy"),
        ('{"format": "other", "version": 1, "ledger": "memory"}', "restore it from a copy"),
        ("[]", "restore it from a copy"),
    ],
)
def test_a_damaged_or_newer_record_is_refused(tmp_path, content, says):
    (tmp_path / PLACE_FILE).write_text(content)
    with pytest.raises(DataDirectoryError, match=says):
        recorded_ledger(tmp_path)


def test_an_in_memory_ledger_is_shared_per_process_and_directory(tmp_path):
    memory = LedgerSpec("memory")
    with pytest.raises(DataDirectoryError, match=r"was in the memory of a process that has ended.*txstorm recover"):
        open_ledger(tmp_path, create=False, ledger=memory)
    first = open_ledger(tmp_path, create=True, ledger=memory)
    first.acquire("words")
    assert "'words'" in open_ledger(tmp_path, create=False, ledger=memory).holder()
    first.close()


@pytest.mark.parametrize(("named", "is_sent"), [("", False), ("a", True), ("a:2181,b:2181", True), ("b", False)])
def test_a_password_goes_to_hosts_that_the_operator_names_only(monkeypatch, tmp_path, named, is_sent):
    monkeypatch.setattr(credentials, "_named_hosts", set())
    monkeypatch.setenv(credentials.AUTH, "user:password")
    monkeypatch.setenv(credentials.AUTH_HOSTS, named)
    if is_sent:
        credentials.check_named(parse_ledger("zookeeper:a:2181/words"), tmp_path, None)
    else:
        with pytest.raises(credentials.SecretRefused, match=r"is not sent to a:2181, which only .*ledger.json names"):
            credentials.check_named(parse_ledger("zookeeper:a:2181/words"), tmp_path, None)
