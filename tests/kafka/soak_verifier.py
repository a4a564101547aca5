"""Says what a soak has lost and what it has counted twice. Shares no code with txstorm.

The records come from Kafka, read with confluent-kafka; the tables are read with deltalake. Which offsets a transaction
has read, the history table says; everything else follows from the records, for each of the four tables alike.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from trouble_verifier import read_ranges, table_rows

FACTOR, MODULUS = 1_000_003, (1 << 61) - 1
BITS = 40
"""Of an offset, below the partition, in what identifies a record; also of a key, below the txid, in what identifies
a change."""

Numbers = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Records:
    """All committed records of the topic, by partition and offset.

    Attributes:
        words: the words there are; `word` is an index into it.
        txid: the transaction that says that it has read the record; 0 where none does.
    """

    words: Sequence[str]
    word: Numbers
    number: Numbers
    partition: Numbers
    offset: Numbers
    txid: Numbers

    @property
    def id(self) -> Numbers:
        """What tells one record from all others."""
        return (self.partition << BITS) | self.offset


class Verifier:
    """Looks at everything, and remembers what is wrong.

    Attributes:
        lost: records that are missing, of each table in turn.
        twice: records too many, of each table in turn.
        problems: what else is wrong, in words.
    """

    def __init__(self, data_dir: Path, topic: str, committed: Iterable[tuple[int, int, str]]) -> None:
        """`committed`: (partition, offset, value) of every committed record of `topic`."""
        self.lost = self.twice = 0
        self.problems: list[str] = []
        self._data_dir = data_dir
        self._history = sorted(table_rows(data_dir / "history"), key=lambda row: row["txid"])
        self.txids = len(self._history)
        self.records = self._located(topic, committed)

    @property
    def clean(self) -> bool:
        """Whether every record is in every table, once, in its place."""
        return not (self.lost or self.twice or self.problems)

    def verify(self) -> None:
        """Look at all tables."""
        self._expect([row["txid"] for row in self._history] == list(range(1, self.txids + 1)), "txids have gaps")
        unread = int((self.records.txid == 0).sum())
        self._expect(not unread, f"{unread} records are in no transaction's range")
        self._check_rows()
        words, places = self.records.word, self.records.partition
        self._check_state("counts", "word", words)
        self._check_state("trails", "word", words)
        self._check_state("places", "partition", places)
        self._check_values("trails", "trail", "word", self._trails())
        self._check_values("places", "last", "partition", _by_key(places, self.records.offset, np.maximum))
        self._check_values("places", "total", "partition", _by_key(places, self.records.number, np.add))

    def _expect(self, holds: bool, otherwise: str) -> None:
        if not holds:
            self.problems.append(otherwise)

    # -- the records and their transactions ---------------------------------------------------------------------

    def _located(self, topic: str, committed: Iterable[tuple[int, int, str]]) -> Records:
        words: dict[str, int] = {}
        word, number, partition, offset = array("q"), array("q"), array("q"), array("q")
        for place, at, value in committed:
            text, _, count = value.partition(" ")
            word.append(words.setdefault(text, len(words)))
            number.append(int(count))
            partition.append(place)
            offset.append(at)
        columns = [np.array(one, np.int64) for one in (word, number, partition, offset)]
        order = np.lexsort((columns[3], columns[2]))
        columns = [one[order] for one in columns]
        return Records(list(words), *columns, self._txids(topic, columns[2], columns[3]))

    def _txids(self, topic: str, partition: Numbers, offset: Numbers) -> Numbers:
        """The transaction in whose range each record is; ranges of a partition have to tile."""
        found = np.zeros(len(offset), np.int64)
        try:
            read = read_ranges(self._history, topic)
        except AssertionError as error:
            self.problems.append(f"the ranges do not tile: {error}")
            return found
        for (_, place), one in read.items():
            self._expect(not one.lost, f"partition {place}: losses are told: {one.lost}")
            if one.ranges:
                txids, starts, stops = np.array(one.ranges, np.int64).T
                mine = np.flatnonzero(partition == place)
                at = np.searchsorted(starts, offset[mine], side="right") - 1
                inside = (at >= 0) & (offset[mine] < stops[at])
                found[mine[inside]] = txids[at[inside]]
        return found

    def _trails(self) -> dict[int, int]:
        """Per word, what the state must hold if its records came in the order of their offsets."""
        found = dict.fromkeys(range(len(self.records.words)), 0)
        for word, number in zip(self.records.word.tolist(), self.records.number.tolist(), strict=True):
            found[word] = (found[word] * FACTOR + number + 1) % MODULUS
        return found

    # -- the tables ---------------------------------------------------------------------------------------------

    def _table(self, name: str) -> pa.Table:
        return pa.table(DeltaTable(self._data_dir / name).to_pyarrow_table())

    def _check_rows(self) -> None:
        """The sink has a row for every record, with what is in it, and the transaction that has read it."""
        table, expected = self._table("sinks/rows"), self.records
        ids = (_numbers(table["partition"]) << BITS) | _numbers(table["offset"])
        unique, first, times = np.unique(ids, return_index=True, return_counts=True)
        known = np.isin(unique, expected.id)
        self.lost += int((~np.isin(expected.id, unique)).sum())
        self.twice += int((times - 1).sum()) + int((~known).sum())
        at = np.searchsorted(expected.id, unique[known])
        for column, wanted in (("number", expected.number), ("_txid", expected.txid)):
            differ = int((_numbers(table[column])[first[known]] != wanted[at]).sum())
            self._expect(not differ, f"sinks/rows: {differ} rows have another {column} than they should")
        differ = int((self._codes(table["word"])[first[known]] != expected.word[at]).sum())
        self._expect(not differ, f"sinks/rows: {differ} rows have another word than they should")
        self._check_txids("sinks/rows", _numbers(table["_txid"]))

    def _check_txids(self, name: str, txids: Numbers) -> None:
        ahead = sorted({int(txid) for txid in txids if txid > self.txids})
        self._expect(not ahead, f"{name} is ahead of the history, which ends with txid {self.txids}: it has {ahead}")

    def _check_state(self, name: str, key: str, keys: Numbers) -> None:
        """Every transaction adds to every key as many as it has records of it, to what was there before."""
        changes = self._table(f"changes/{name}")
        txids, codes = _numbers(changes["_txid"]), self._codes(changes[key])
        self._check_txids(f"changes/{name}", txids)
        before = _numbers(pc.struct_field(changes["_prev"].combine_chunks(), "n"))
        wanted, counts = np.unique((self.records.txid << BITS) | keys, return_counts=True)
        added, first, times = np.unique((txids << BITS) | codes, return_index=True, return_counts=True)
        self._expect(bool((times == 1).all()), f"changes/{name}: keys that change more than once in a transaction")
        other = np.setxor1d(wanted, added) >> BITS
        self._expect(not len(other), f"changes/{name}: other keys than were read, in txids {_some(other)}")
        both = np.isin(wanted, added)
        amounts = (_numbers(changes["n"]) - before)[first[np.isin(added, wanted)]]
        wrong = wanted[both][amounts != counts[both]] >> BITS
        self._expect(not len(wrong), f"changes/{name}: other counts than were read, in txids {_some(wrong)}")
        self._check_chain(name, changes, codes, txids)
        self._check_now(name, key, changes, codes, txids, keys)

    def _check_chain(self, name: str, changes: pa.Table, codes: Numbers, txids: Numbers) -> None:
        """What a change says was before is what the change before it has made."""
        order = np.lexsort((txids, codes))
        follows = codes[order][1:] == codes[order][:-1]
        previous = changes["_prev"].combine_chunks()
        for field in previous.type:
            now, before = _numbers(changes[field.name])[order], _numbers(pc.struct_field(previous, field.name))[order]
            broken = int((follows & (before[1:] != now[:-1])).sum())
            self._expect(not broken, f"changes/{name}: {broken} values of {field.name} do not follow from those before")
        begun = int((~_is_null(previous)[order][1:] & ~follows).sum())
        self._expect(not begun, f"changes/{name}: {begun} keys had a value before their first change")

    def _check_now(self, name: str, key: str, changes: pa.Table, codes: Numbers, txids: Numbers, keys: Numbers) -> None:
        """The state's table holds as many of each key as were read, and of each value what the last change has made."""
        state = self._table(f"state/{name}")
        self._check_txids(f"state/{name}", _numbers(state["_txid"]))
        held = dict(zip(self._codes(state[key]).tolist(), _numbers(state["n"]).tolist(), strict=True))
        self._expect(len(held) == len(state), f"state/{name}: keys that are there more than once")
        wanted = _by_key(keys, np.ones_like(keys), np.add)
        for code in held.keys() | wanted.keys():
            surplus = held.get(code, 0) - wanted.get(code, 0)
            self.lost += max(0, -surplus)
            self.twice += max(0, surplus)
        last = _by_key(codes, txids, np.maximum)
        now = dict(zip(self._codes(state[key]).tolist(), _numbers(state["_txid"]).tolist(), strict=True))
        self._expect(now == last, f"state/{name}: rows of other txids than those that changed them last")

    def _check_values(self, name: str, column: str, key: str, wanted: dict[int, int]) -> None:
        state = self._table(f"state/{name}")
        held = dict(zip(self._codes(state[key]).tolist(), _numbers(state[column]).tolist(), strict=True))
        wrong = [self._named(key, code) for code in sorted(wanted) if held.get(code) != wanted[code]]
        self._expect(not wrong, f"state/{name}: {column} is another one than the records make it, of {wrong[:5]}")

    def _codes(self, keys: pa.ChunkedArray) -> Numbers:
        """Keys as numbers: partitions are, words are those of the records, and unknown ones come behind these."""
        if pa.types.is_integer(keys.type):
            return _numbers(keys)
        found = pc.index_in(keys.cast(pa.string()), pa.array(self.records.words, pa.string()))
        return _numbers(pc.fill_null(found, len(self.records.words)))

    def _named(self, key: str, code: int) -> Any:
        return self.records.words[code] if key == "word" else code


def _numbers(column: pa.ChunkedArray | pa.Array) -> Numbers:
    """A column of whole numbers; zero where there is none."""
    return np.asarray(pc.fill_null(column.cast(pa.int64()), 0), np.int64)


def _is_null(column: pa.Array) -> np.ndarray[Any, np.dtype[np.bool_]]:
    return np.asarray(pc.is_null(column), bool)


def _by_key(keys: Numbers, values: Numbers, how: np.ufunc) -> dict[int, int]:
    """Per key, its values put together."""
    order = np.argsort(keys, kind="stable")
    found, first = np.unique(keys[order], return_index=True)
    if not len(found):
        return {}
    return dict(zip(found.tolist(), how.reduceat(values[order], first).tolist(), strict=True))


def _some(txids: Numbers) -> list[int]:
    return sorted({int(txid) for txid in txids})[:10]
