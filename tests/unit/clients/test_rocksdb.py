"""The local key store (RocksDB): closing it while other threads use it."""

from threading import Event, Thread

import pytest

from txstorm.clients.rocksdb import KeyStore, KeyStoreError

KEYS = [b"%06d" % i for i in range(5_000)]
CALLS = {
    "get": lambda store: store.get(KEYS),
    "scan": lambda store: store.scan(b"", b"\xff"),
    "write": lambda store: store.write((key, b"w" * 100) for key in KEYS),
    "sync": lambda store: store.sync(),
}


def until_closed(store, call, busy, refused):
    while True:
        try:
            call(store)
        except KeyStoreError as error:
            refused.append(str(error))
            return
        busy.set()


def test_closing_waits_for_calls_of_other_threads_and_refuses_later_ones(tmp_path):
    store = KeyStore.open(tmp_path / "store")
    store.write((key, b"v" * 100) for key in KEYS)
    refused: list[str] = []
    busy = {name: Event() for name in CALLS}
    threads = [Thread(target=until_closed, args=(store, call, busy[name], refused)) for name, call in CALLS.items()]
    for thread in threads:
        thread.start()
    for event in busy.values():
        assert event.wait(60)
    store.close()
    store.close()
    for thread in threads:
        thread.join(60)
    assert {error.rpartition(": ")[2] for error in refused} == {"it is closed"}
    assert len(refused) == len(CALLS)
    for call in CALLS.values():
        with pytest.raises(KeyStoreError, match=r"store: cannot be (read|written): it is closed"):
            call(store)
    again = KeyStore.open(tmp_path / "store")  # nothing holds it open
    assert again.get(KEYS[:1]) != [None]
    again.close()
