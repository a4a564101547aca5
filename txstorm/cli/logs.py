"""Where txstorm's log goes while a command runs: to standard error."""

from __future__ import annotations

import logging

from rich.console import Console
from rich.logging import RichHandler

from txstorm.cli.output import escaped

_LINE = "%(message)s"
FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


class _Escaping(logging.Formatter):
    """Formats records whose messages and traces may quote what users, files and servers gave."""

    def format(self, record: logging.LogRecord) -> str:
        """The lines of `record`, with nothing in them that a terminal obeys."""
        return escaped(super().format(record))


def log_to(console: Console, level: str) -> None:
    """Send what ``txstorm`` logs from `level` on to `console`, above the live table if there is one."""
    logger = logging.getLogger("txstorm")
    logger.setLevel(level.upper())
    handler: logging.Handler
    if console.is_terminal:
        handler = RichHandler(console=console, show_path=False, log_time_format="%H:%M:%S")
        handler.setFormatter(_Escaping(_LINE))
    else:
        handler = logging.StreamHandler(console.file)
        handler.setFormatter(_Escaping(FORMAT))
    for old in list(logger.handlers):
        if not isinstance(old, logging.NullHandler):
            logger.removeHandler(old)
    logger.addHandler(handler)
