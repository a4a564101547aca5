"""Stateless bolts that process one tuple or record batch at a time: mapping, filtering, splitting text into words."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pyarrow as pa

from txstorm.api.bolt import BasicBolt
from txstorm.api.output import Collector, OutputFieldsDeclarer
from txstorm.api.tuples import Tuple


class Declared(BasicBolt):
    """Base class of the bolts in this module: a basic bolt whose constructor takes its output fields.

    Args:
        fields: names of the fields emitted.
    """

    def __init__(self, *fields: str) -> None:
        self.columns = fields

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        """Declare the fields given to the constructor."""
        declarer.declare(self.columns)


class Identity(Declared):
    """Bolt that emits every tuple unchanged, under the given field names, in order.

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
    """Bolt that emits ``function(tuple)`` for every tuple: a value for one field, a sequence of values for several.

    Example::

        Map(lambda row: (row["price"] * row["n"], row["shop"]), "amount", "shop")
    """

    def __init__(self, function: Callable[[Tuple], Any], *fields: str) -> None:
        super().__init__(*fields)
        self._function = function

    def execute(self, tuple: Tuple, collector: Collector) -> None:  # noqa: A002 - Storm's word
        """Apply the function to a tuple and emit the result."""
        made = self._function(tuple)
        if len(self.columns) == 1:
            collector.emit(made)
        else:
            collector.emit(*made)


class FlatMap(Declared):
    """Bolt that emits any number of tuples per input tuple: `function` returns an iterable of results as for `Map`.

    Example::

        FlatMap(lambda row: row["line"].split(), "word")
    """

    def __init__(self, function: Callable[[Tuple], Iterable[Any]], *fields: str) -> None:
        super().__init__(*fields)
        self._function = function

    def execute(self, tuple: Tuple, collector: Collector) -> None:  # noqa: A002 - Storm's word
        """Apply the function to a tuple and emit all results."""
        made = self._function(tuple)
        if len(self.columns) == 1:
            for value in made:
                collector.emit(value)
        else:
            for values in made:
                collector.emit(*values)


class Filter(Declared):
    """Bolt that emits, unchanged, the tuples for which ``predicate(tuple)`` is true; `fields` as for `Identity`.

    Example::

        Filter(lambda row: row["amount"] > 0, "shop", "amount")
    """

    def __init__(self, predicate: Callable[[Tuple], object], *fields: str) -> None:
        super().__init__(*fields)
        self._predicate = predicate

    def execute(self, tuple: Tuple, collector: Collector) -> None:  # noqa: A002 - Storm's word
        """Emit the tuple if the predicate is true for it."""
        if self._predicate(tuple):
            collector.emit(*tuple.values)


class MapBatches(Declared):
    """Bolt that emits ``function(batch)`` for every `pyarrow.RecordBatch`: a record batch, a table, or None (nothing).

    Use it to process whole columns without writing a class; the result must have the columns `fields`::

        MapBatches(lambda batch: batch.filter(pc.field("amount") > 0), "shop", "amount")
    """

    def __init__(self, function: Callable[[Any], Any], *fields: str) -> None:
        super().__init__(*fields)
        self._function = function

    def execute_batch(self, batch: Any, collector: Collector) -> None:
        """Apply the function to a record batch and emit the result."""
        result = self._function(batch)
        if result is not None:
            collector.emit_batch(result)


class SplitWords(Declared):
    """Bolt that emits the words of a text field, one tuple each: ``re.findall(pattern, text.lower())``; none for None.

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

    def known_types(self) -> Mapping[str, Any]:
        """Return the type of the words."""
        return {self.columns[0]: str}

    def execute_batch(self, batch: Any, collector: Collector) -> None:
        """Emit the words in the text field of every row."""
        find, texts = self._find.findall, batch.column(self._field).to_pylist()
        if self._lower:
            words = [word for text in texts if text is not None for word in find(text.lower())]
        else:
            words = [word for text in texts if text is not None for word in find(text)]
        collector.emit_batch(pa.record_batch({self.columns[0]: pa.array(words, pa.string())}))
