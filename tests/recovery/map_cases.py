"""Actual and expected rows of the maps of the scenario "words"."""

from __future__ import annotations

from scenarios.words import TXIDS, lines

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


def expected(batches: list[list[str]]) -> dict[str, dict[str, int]]:
    """Return the expected rows after `batches` of words."""
    words: dict[str, int] = {}
    lengths: dict[str, int] = {}
    for txid, batch in enumerate(batches, start=1):
        for word in batch:
            words[f'"{word}"'] = words.get(f'"{word}"', 0) + 1
            lengths[str(len(word))] = lengths.get(str(len(word)), 0) + 1
        if txid % 2 == 0:
            words = {word: n for word, n in words.items() if not (word.startswith('"z') and word.strip('"') in batch)}
    return {"words": words, "lengths": lengths}


def of_spout(spout: str) -> dict[str, dict[str, int]]:
    """Return the expected rows after an undisturbed run of the crash job with this spout."""
    rows = lines(TXIDS)
    if spout == "file":
        taken = [rows[i : i + 4] for i in range(0, len(rows), 4)]
    else:
        one, two = rows[::2], rows[1::2]
        taken = [one[i : i + 2] + two[i : i + 2] for i in range(0, len(one), 2)]
    return expected([" ".join(batch).split() for batch in taken])
