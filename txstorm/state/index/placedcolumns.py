"""Rows of collections column by column: what an Arrow scan gives, without a Python object per row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from txstorm.keys import canonical_value
from txstorm.state.index.ordered_rows import Place
from txstorm.storage.rows.forms import Value, ValueForm

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Columns:
    """Rows of some collections, by collection and then in their order; all columns are equally long.

    Attributes:
        owners: the number of each row's collection among those that were asked for.
        orders: the values of the order column, as 64 bits.
        numbers: the row's number among all of the collection.
        values: the columns that are stored.
    """

    owners: Numbers
    orders: Numbers
    numbers: Numbers
    values: Sequence[pa.Array]

    def over(self, later: Sequence[Sequence[tuple[Place, Value | None]]], form: ValueForm) -> Columns:
        """These with the `later` rows of each collection over them, without those that are None there."""
        if not any(later):
            return self
        newer = placed_columns(later, form)
        there = [value is not None for _, value in chain.from_iterable(later)]
        owners, orders, numbers = map(np.concatenate, zip(self.places, newer.places, strict=True))
        values = [pa.concat_arrays(pair) for pair in zip(self.values, newer.values, strict=True)]
        both = Columns(owners, orders, numbers, values)
        last = np.lexsort((numbers, orders, owners))  # is stable: of two rows with one place the later one is behind
        keep = np.ones(len(last), bool)
        keep[:-1] = np.any([one[last][1:] != one[last][:-1] for one in both.places], axis=0)
        return both.taken(last[keep & np.concatenate([np.ones(len(self.owners), bool), there])[last]])

    @property
    def places(self) -> tuple[Numbers, Numbers, Numbers]:
        """The columns that say where a row is; from left to right they order the rows."""
        return self.owners, self.orders, self.numbers

    def taken(self, rows: Any) -> Columns:
        """The rows with these indices, or for which this is true."""
        picked = np.arange(len(self.owners))[rows]
        values = [one.take(pa.array(picked)) for one in self.values]
        return Columns(self.owners[picked], self.orders[picked], self.numbers[picked], values)


def placed_columns(rows: Sequence[Sequence[tuple[Place, Value | None]]], form: ValueForm) -> Columns:
    """The rows of some collections, which are in their order, as columns; nulls where a row has no value."""
    flat = list(chain.from_iterable(rows))
    owners = np.repeat(np.arange(len(rows)), [len(part) for part in rows])
    orders = np.fromiter((_bits(place[0]) for place, _ in flat), np.int64, len(flat))
    numbers = np.fromiter((place[1] for place, _ in flat), np.int64, len(flat))
    return Columns(owners, orders, numbers, form.arrays([value for _, value in flat]))


def _bits(order: Any) -> int:
    return int.from_bytes(canonical_value(order)[1], "little", signed=True)
