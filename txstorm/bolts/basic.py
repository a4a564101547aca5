"""Stateless bolts that process one tuple or record batch at a time: mapping, filtering, selecting, splitting text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from txstorm.api.bolt import BasicBolt
from txstorm.api.output import Collector, OutputFieldsDeclarer
from txstorm.api.tuples import Tuple
from txstorm.bolts.expressions import parsed
from txstorm.errors import InputError


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
    """Bolt that emits, unchanged, the tuples for which a condition is true; `fields` as for `Identity`.

    Example::

        Filter("amount > 0 and shop is not null", "shop", "amount")
        Filter(lambda row: row["amount"] > 0, "shop", "amount")

    Args:
        condition: the text of a condition (see `parsed`), which is evaluated on record batches; null is not true. Or a
            function of a tuple.
        fields: names of the fields emitted.

    Raises:
        InputError: the text is no condition.
    """

    def __new__(cls, condition: str | Callable[[Tuple], object] | None = None, *fields: str) -> Filter:
        """Return a bolt for record batches if the condition is a text; when a bolt is unpickled, it is not given."""
        return super().__new__(_FilterColumns if cls is Filter and isinstance(condition, str) else cls)

    def __init__(self, condition: str | Callable[[Tuple], object], *fields: str) -> None:
        super().__init__(*fields)
        self._predicate: Any = condition

    def execute(self, tuple: Tuple, collector: Collector) -> None:  # noqa: A002 - Storm's word
        """Emit the tuple if the condition is true for it."""
        if self._predicate(tuple):
            collector.emit(*tuple.values)


class _FilterColumns(Filter):
    """Filter with the text of a condition."""

    takes_tagged = True
    execute = BasicBolt.execute  # tuples arrive as record batches, too

    def __init__(self, condition: str, *fields: str) -> None:
        super().__init__(condition, *fields)
        self._predicate = parsed(condition)
        if self._predicate.known_type not in (None, pa.bool_()):
            msg = f"{condition}: expected a condition, got an expression of type {self._predicate.known_type}"
            raise InputError(msg)
        self.needed_fields = self._predicate.fields

    def execute_batch(self, batch: Any, collector: Collector) -> None:
        """Emit the rows of a record batch for which the condition is true."""
        mask = self._predicate.column(batch)
        if mask.type not in (pa.bool_(), pa.null()):
            raise InputError(f"{self._predicate.text}: expected a condition, got values of type {mask.type}")
        if batch.num_columns != len(self.columns):
            raise InputError(f"expected a name for each of the fields {batch.schema.names}, got {list(self.columns)}")
        collector.emit_batch(batch.filter(mask.cast(pa.bool_())).rename_columns(list(self.columns)))


class Select(Declared):
    """Bolt that emits computed columns for every tuple, in the order given.

    Example::

        Select({"shop": "lower(trim(shop))", "amount": "amount * 2"})
        Select(["shop", "amount"])

    Args:
        columns: field emitted → the text of an expression (see `parsed`), or the names of fields that are passed on
            unchanged.

    Raises:
        InputError: a text is no expression.
    """

    takes_tagged = True

    def __init__(self, columns: Mapping[str, str] | Sequence[str]) -> None:
        if isinstance(columns, str) or not columns:
            raise InputError(f"expected a mapping field → expression, or names of fields, got {columns!r}")
        if not isinstance(columns, Mapping):
            columns = {name: f"`{name.replace('`', '``')}`" for name in columns}
        super().__init__(*columns)
        self._expressions = {name: parsed(text) for name, text in columns.items()}
        self.needed_fields = tuple(dict.fromkeys(name for one in self._expressions.values() for name in one.fields))

    def known_types(self) -> Mapping[str, Any]:
        """Return the types of the columns that do not depend on those of the input."""
        return {name: kind for name, one in self._expressions.items() if (kind := one.known_type) is not None}

    def execute_batch(self, batch: Any, collector: Collector) -> None:
        """Emit the columns computed from a record batch."""
        fields, columns = [], []
        for name, one in self._expressions.items():
            if one.field in batch.schema.names:  # as it was sent
                columns.append(batch.column(one.field))
                fields.append(batch.schema.field(one.field).with_name(name))
            else:
                columns.append(one.column(batch))
                fields.append(pa.field(name, columns[-1].type))
        collector.emit_batch(pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields)))


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
