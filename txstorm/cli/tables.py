"""Tables without lines: drawn to fit a terminal, and one line a row, nothing folded or padded, where there is none."""

from __future__ import annotations

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

ALIGNED = 60
"""Characters to which columns are aligned in a file or pipe: one long value must not push the other rows away."""


class PlainTable(Table):
    """A table that other programs can read, too."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw it, as `Table` does, or write its lines."""
        if console.is_terminal:
            yield from super().__rich_console__(console, options)
            return
        columns = [self._texts(column) for column in self.columns]
        widths = [max((one for one in map(cell_len, texts) if one <= ALIGNED), default=0) for texts in columns]
        for cells in zip(*columns, strict=True):
            line = "  ".join(map(_aligned, cells, widths, self.columns))
            yield Segment(f"{line.rstrip()}\n")

    def _texts(self, column: Column) -> list[str]:
        head = [_plain(column.header)] if self.show_header else []
        return [*head, *map(_plain, column.cells)]


def _plain(cell: RenderableType) -> str:
    return " ".join((cell.plain if isinstance(cell, Text) else str(cell)).split("\n"))


def _aligned(text: str, width: int, column: Column) -> str:
    blanks = " " * (width - cell_len(text))
    return blanks + text if column.justify == "right" else text + blanks
