"""Actual and expected rows of the maps of the scenario "words"."""

from __future__ import annotations

from scenarios.words import batches

from txstorm.clients.sql import SqlAlchemyBackend

KEYS = ["the", "cow", "jumped", "over", "moon", "cat", "dog", "cat's", "a", "zebra"]


def counted(url: str) -> dict[str, dict[object, object]]:
    """Return the actual rows of the maps."""
    found = {}
    for table, keys in (("words", [f'"{word}"' for word in KEYS]), ("lengths", [str(n) for n in range(1, 9)])):
        backend = SqlAlchemyBackend(url, table)
        rows = backend.multi_get(keys)
        found[table] = {key: row.value for key, row in zip(keys, rows, strict=True) if row and row.value is not None}
        backend.dispose()
    return found


def expected(spout: str) -> dict[str, dict[str, int]]:
    """Return the expected rows after an undisturbed run of the scenario with this spout."""
    words: dict[str, int] = {}
    lengths: dict[str, int] = {}
    for txid, batch in enumerate(batches(spout), start=1):
        for word in batch:
            words[f'"{word}"'] = words.get(f'"{word}"', 0) + 1
            lengths[str(len(word))] = lengths.get(str(len(word)), 0) + 1
        if txid % 2 == 0:
            words = {word: n for word, n in words.items() if not (word.startswith('"z') and word.strip('"') in batch)}
    return {"words": words, "lengths": lengths}
