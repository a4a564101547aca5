"""Text tables without ruled lines: fitted to the width of a terminal; elsewhere one line per row, never wrapped."""

from __future__ import annotations

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

ALIGNED = 60
"""Width in characters up to which a cell widens its column in a file or pipe, so that one long value does not widen
all other rows."""


class PlainTable(Table):
    """A text table that other programs can parse when it is written to a file or pipe."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render like `Table` in a terminal, and as one line per row elsewhere."""
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
