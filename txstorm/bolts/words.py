"""Taking text apart."""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa

from txstorm.api.output import Collector
from txstorm.bolts.basic import Declared


class SplitWords(Declared):
    """Emits the words of a text field, one tuple each: ``re.findall(pattern, text.lower())``; None has no words.

    Example::

        builder.set_bolt("split", SplitWords("line"), 2).local_or_shuffle_grouping("lines")

    Args:
        field: the field of the input that holds the text.
        pattern: a regular expression without groups; what it matches is a word.
        lower: whether the text is turned to lower case first.
        word: the field emitted.

    Raises:
        ValueError: the pattern has groups, or is no regular expression (`re.error`).
    """

    def __init__(self, field: str = "line", *, pattern: str = r"[a-z']+", lower: bool = True, word: str = "word"):
        super().__init__(word)
        self._find = re.compile(pattern)
        if self._find.groups:
            msg = f"pattern {pattern!r} has groups, and then findall gives no words; use (?:…) instead"
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
