"""Delivery machine: one operator's turn in a transaction, under each of the three semantics.

Pure: events and the time are its input, effects its output. The semantics differ in three places only: what becomes of
a delivery that is overdue or broken, which answers count, and what a resend holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from txstorm.dadstorm.configuration import AT_LEAST_ONCE, AT_MOST_ONCE, EXACTLY_ONCE, Semantics

Fields = tuple[str, ...]


class Item(NamedTuple):
    """A tuple on its way to an operator: its id and its fields."""

    id: str
    fields: Fields


class Deliver(NamedTuple):
    """Effect: send `items` to a replica, as the delivery `number`, which is never used again."""

    operator: str
    replica: int
    number: int
    items: Sequence[Item]


class Withdraw(NamedTuple):
    """Effect: the replica need not process the rest of the delivery `number`; answers to it are dropped."""

    operator: str
    replica: int
    number: int


Effect = Deliver | Withdraw
Answers = Iterable[tuple[str, Sequence[Sequence[str]]]]
"""A piece of an answer: ids of tuples of a delivery, each with the tuples that came of it."""
