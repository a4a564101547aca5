"""Stateless bolts that process one tuple or one record batch at a time: map, filter, splitting text into words."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa

from txstorm.api.bolt import BasicBolt
from txstorm.api.output import Collector, OutputFieldsDeclarer
from txstorm.api.tuples import Tuple


class Declared(BasicBolt):
    """Base of the bolts in this module: a basic bolt whose output fields are given to its constructor.

    Args:
        fields: names of the fields emitted.
    """

    def __init__(self, *fields: str) -> None:
        self.columns = fields

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        """Declare the fields given to the constructor."""
        declarer.declare(self.columns)


class Identity(Declared):
    """Emits every tuple unchanged; its values get the given field names, in order.

    Example::

        builder.set_bolt("again", Identity("word")).shuffle_grouping("words")
    """

    def execute(self, tuple: Tuple, collector: Collector) -> None:  # noqa: A002 - Storm's word
        """Emit the tuple unchanged."""
        collector.emit(*tuple.values)

    def execute_batch(self, batch: Any, collector: Collector) -> None:
        """Emit the record batch unchanged."""
        collector.emit_batch(batch.rename_columns(list(self.columns)))


class Map(Declared):
    """Emits ``function(tuple)`` for every tuple: a value for one field, a sequence of values for several.

    Example::

        Map(lambda row: (row["price"] * row["n"], row["shop"]), "amount", "shop")
    """

    def __init__(self, function: Callable[[Tuple], Any], *fields: str) -> None:
        super().__init__(*fields)
        self._function = function

    def execute(self, tuple: Tuple, collector: Collector) -> None:  # noqa: A002 - Storm's word
        """Emit the result of the function for a tuple."""
        made = self._function(tuple)
        if len(self.columns) == 1:
            collector.emit(made)
        else:
            collector.emit(*made)


class FlatMap(Declared):
    """Emits any number of tuples per tuple: `function` returns an iterable of values as returned by `Map`'s function.

    Example::

        FlatMap(lambda row: row["line"].split(), "word")
    """

    def __init__(self, function: Callable[[Tuple], Iterable[Any]], *fields: str) -> None:
        super().__init__(*fields)
        self._function = function

    def execute(self, tuple: Tuple, collector: Collector) -> None:  # noqa: A002 - Storm's word
        """Emit all results of the function for a tuple."""
        made = self._function(tuple)
        if len(self.columns) == 1:
            for value in made:
                collector.emit(value)
        else:
            for values in made:
                collector.emit(*values)


class Filter(Declared):
    """Emits the tuples for which ``predicate(tuple)`` is true, unchanged; `fields` as for `Identity`.

    Example::

        Filter(lambda row: row["amount"] > 0, "shop", "amount")
    """

    def __init__(self, predicate: Callable[[Tuple], object], *fields: str) -> None:
        super().__init__(*fields)
        self._predicate = predicate

    def execute(self, tuple: Tuple, collector: Collector) -> None:  # noqa: A002 - Storm's word
        """Emit the tuple if the predicate is true."""
        if self._predicate(tuple):
            collector.emit(*tuple.values)


class MapBatches(Declared):
    """Emits ``function(batch)`` for every `pyarrow.RecordBatch`: a record batch or table with `fields`, or None.

    For working on columns without writing a class::

        MapBatches(lambda batch: batch.filter(pc.field("amount") > 0), "shop", "amount")
    """

    def __init__(self, function: Callable[[Any], Any], *fields: str) -> None:
        super().__init__(*fields)
        self._function = function

    def execute_batch(self, batch: Any, collector: Collector) -> None:
        """Emit the result of the function for a record batch."""
        result = self._function(batch)
        if result is not None:
            collector.emit_batch(result)


class SplitWords(Declared):
    """Emits the words of a text field, one tuple each: ``re.findall(pattern, text.lower())``; None has no words.

    Example::

        builder.set_bolt("split", SplitWords("line"), 2).local_or_shuffle_grouping("lines")

    Args:
        field: the field of the input that holds the text.
        pattern: a regular expression without groups that matches a word.
        lower: whether to convert the text to lower case first.
        word: name of the field emitted.

    Raises:
        ValueError: the pattern has groups, or is not a regular expression (`re.error`).
    """

    def __init__(self, field: str = "line", *, pattern: str = r"[a-z']+", lower: bool = True, word: str = "word"):
        super().__init__(word)
        self._find = re.compile(pattern)
        if self._find.groups:
            msg = f"pattern {pattern!r} has groups, so findall does not return whole words; use (?:…) instead"
            raise ValueError(msg)
        self._field, self._lower = field, lower

    def execute_batch(self, batch: Any, collector: Collector) -> None:
        """Emit the words of every row."""
        find, texts = self._find.findall, batch.column(self._field).to_pylist()
        if self._lower:
            words = [word for text in texts if text is not None for word in find(text.lower())]
        else:
            words = [word for text in texts if text is not None for word in find(text)]
        collector.emit_batch(pa.record_batch({self.columns[0]: pa.array(words, pa.string())}))
